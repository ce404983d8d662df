"""Search by meaning: texts as vectors by an ONNX model, kept in Chroma.

It is optional, and imported when it is first used. The fusion with other results is in knowledge/search.
"""
