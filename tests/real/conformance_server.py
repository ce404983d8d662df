"""Our server with the tools, resources and prompts that the conformance suite looks for: `python -m … PORT`.

Everything below the tools is the real thing: transport, sessions, eras, tasks. What a tool of the suite does for a while is
a real job, so that its task is one of ours. Resource subscriptions and log levels of the era before 2026-07-28 are no
feature of ours: their handlers stand here, because the suite's set for that era asks for them.
"""

import asyncio
import json
import sys
from base64 import b64decode, b64encode
from typing import Any

from mcp.server.mcpserver import Context, require_client_extension
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INTERNAL_ERROR,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    EmbeddedResource,
    EmptyResult,
    ImageContent,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    TextResourceContents,
    UnsubscribeRequestParams,
)

from gpu_mcp_server.mcp_api import tasks
from gpu_mcp_server.mcp_api.server import LabServer, server_from_settings
from gpu_mcp_server.runtime.logging_setup import log_to_stderr
from gpu_mcp_server.settings.server_settings import load_settings
from gpu_mcp_server.web import http_server

PIXEL = b64encode(b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")).decode()
SILENCE = b64encode(
    b"RIFF\x26\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1f\0\0\x80\x3e\0\0\x02\0\x10\0data\x02\0\0\0\0\0"
).decode()
LASTING = (
    "slow_compute",
    "failing_job",
    "protocol_error_job",
    "test_tool_with_task",
    "confirm_delete",
    "multi_input",
)


def asking(message: str, **properties: Any) -> ElicitRequest:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def sampling(text: str, tokens: int) -> CreateMessageRequest:
    said = SamplingMessage(role="user", content=TextContent(text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[said], max_tokens=tokens))


NAME = {"type": "string"}
ASK_NAME = {"user_name": asking("What is your name?", name=NAME)}


def answered(ctx: Context[Any, Any], *keys: str) -> dict[str, Any] | None:
    """Return the client's answers to all keys; None where one is missing or of another kind."""
    given = ctx.input_responses or {}
    if any(key not in given for key in keys):
        return None
    return {key: given[key].model_dump(by_alias=True, exclude_none=True) for key in keys}


def name_in(answers: dict[str, Any]) -> str | None:
    content = answers["user_name"].get("content")
    return content.get("name") if isinstance(content, dict) else None


async def waited(ctx: Context[Any, Any], seconds: float) -> None:
    """Wait by a job, as our own tools do."""
    lab = await ctx.request_context.lifespan_context.lab()
    await lab.commands.run(["sleep", str(seconds)], timeout_s=seconds + 30)


def offer_contents(server: LabServer) -> None:
    tool = server.tool(description="Of the conformance suite.", structured_output=False)

    @tool
    async def test_simple_text() -> str:
        return "This is a simple text response for testing."

    @tool
    async def test_image_content() -> ImageContent:
        return ImageContent(data=PIXEL, mime_type="image/gif")

    @tool
    async def test_audio_content() -> AudioContent:
        return AudioContent(data=SILENCE, mime_type="audio/wav")

    def embedded(uri: str, text: str) -> EmbeddedResource:
        return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type="text/plain", text=text))

    @tool
    async def test_embedded_resource() -> EmbeddedResource:
        return embedded("test://embedded-resource", "This is an embedded resource content.")

    @tool
    async def test_multiple_content_types() -> list[TextContent | ImageContent | EmbeddedResource]:
        resource = embedded("test://mixed-content-resource", '{"test": "data"}')
        return [
            TextContent(text="Multiple content types test:"),
            ImageContent(data=PIXEL, mime_type="image/gif"),
            resource,
        ]

    @tool
    async def test_error_handling() -> str:
        raise ToolError("This tool intentionally returns an error for testing")

    @tool
    async def test_tool_with_progress(ctx: Context[Any, Any]) -> str:
        for value in (0, 50, 100):
            await ctx.report_progress(value, 100, f"Completed step {value} of 100")
            await asyncio.sleep(0.05)
        return "done"

    @tool
    async def test_missing_capability(ctx: Context[Any, Any]) -> str:
        if ctx.client_capabilities is None or ctx.client_capabilities.sampling is None:
            data = {"requiredCapabilities": {"sampling": {}}}
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling.", data)
        return "declared"


def offer_legacy(server: LabServer) -> None:
    tool = server.tool(description="Of the conformance suite.", structured_output=False)

    @tool
    async def test_tool_with_logging(ctx: Context[Any, Any]) -> str:
        for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.session.send_log_message("info", text, related_request_id=ctx.request_id)
            await asyncio.sleep(0.05)
        return "done"

    @tool
    async def test_sampling(prompt: str, ctx: Context[Any, Any]) -> str:
        said = [SamplingMessage(role="user", content=TextContent(text=prompt))]
        answer = await ctx.session.create_message(said, max_tokens=100, related_request_id=ctx.request_id)
        return f"LLM response: {getattr(answer.content, 'text', '')}"

    async def elicited(ctx: Context[Any, Any], message: str, **properties: Any) -> str:
        schema = {"type": "object", "properties": properties}
        answer = await ctx.session.elicit_form(message, schema, related_request_id=ctx.request_id)
        return f"Elicitation completed: action={answer.action}, content={json.dumps(answer.content or {})}"

    @tool
    async def test_elicitation(message: str, ctx: Context[Any, Any]) -> str:
        said = await elicited(ctx, message, username=NAME, email=NAME)
        return said.replace("Elicitation completed", "User response")

    @tool
    async def test_elicitation_sep1034_defaults(ctx: Context[Any, Any]) -> str:
        return await elicited(
            ctx, "Please provide user information",
            name={"type": "string", "default": "John Doe"}, age={"type": "integer", "default": 30},
            score={"type": "number", "default": 95.5}, verified={"type": "boolean", "default": True},
            status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        )  # fmt: skip

    @tool
    async def test_elicitation_sep1330_enums(ctx: Context[Any, Any]) -> str:
        plain = ["option1", "option2", "option3"]
        titled = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
        return await elicited(
            ctx, "Please choose",
            untitledSingle={"type": "string", "enum": plain}, titledSingle={"type": "string", "oneOf": titled},
            legacyEnum={"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
            untitledMulti={"type": "array", "items": {"type": "string", "enum": plain}},
            titledMulti={"type": "array", "items": {"anyOf": titled}},
        )  # fmt: skip

    async def nothing(_: Any, __: Any) -> EmptyResult:
        return EmptyResult()

    for method, params in (
        ("logging/setLevel", SetLevelRequestParams),
        ("resources/subscribe", SubscribeRequestParams),
        ("resources/unsubscribe", UnsubscribeRequestParams),
    ):
        server._lowlevel_server.add_request_handler(method, params, nothing)


def offer_questions(server: LabServer) -> None:
    tool = server.tool(description="Of the conformance suite.", structured_output=False)

    @tool
    async def test_input_required_result_elicitation(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        answers = answered(ctx, "user_name")
        name = name_in(answers) if answers else None
        return f"Hello, {name}!" if name else InputRequiredResult(input_requests=ASK_NAME)

    @tool
    async def test_input_required_result_sampling(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        answers = answered(ctx, "capital_question")
        asked = {"capital_question": sampling("What is the capital of France?", 100)}
        return json.dumps(answers) if answers else InputRequiredResult(input_requests=asked)

    @tool
    async def test_input_required_result_list_roots(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        answers = answered(ctx, "client_roots")
        if answers is None:
            return InputRequiredResult(input_requests={"client_roots": ListRootsRequest()})
        return " ".join(str(root["uri"]) for root in answers["client_roots"]["roots"])

    @tool
    async def test_input_required_result_request_state(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        if ctx.request_state == "asked" and answered(ctx, "confirm"):
            return "state-ok"
        asked = {"confirm": asking("Please confirm", ok={"type": "boolean"})}
        return InputRequiredResult(input_requests=asked, request_state="asked")

    @tool
    async def test_input_required_result_tampered_state(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        if ctx.request_state == "asked":
            return "state-ok"
        asked = {"confirm": asking("Please confirm", ok={"type": "boolean"})}
        return InputRequiredResult(input_requests=asked, request_state="asked")

    @tool
    async def test_input_required_result_multiple_inputs(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        answers = answered(ctx, "user_name", "greeting", "client_roots")
        if answers and ctx.request_state == "asked":
            return json.dumps(answers)
        asked = {**ASK_NAME, "greeting": sampling("Generate a greeting", 50), "client_roots": ListRootsRequest()}
        return InputRequiredResult(input_requests=asked, request_state="asked")

    @tool
    async def test_input_required_result_multi_round(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        if ctx.request_state == "second" and answered(ctx, "step2"):
            return "done"
        if ctx.request_state == "first" and answered(ctx, "step1"):
            asked = {"step2": asking("Step 2: What is your favorite color?", color=NAME)}
            return InputRequiredResult(input_requests=asked, request_state="second")
        asked = {"step1": asking("Step 1: What is your name?", name=NAME)}
        return InputRequiredResult(input_requests=asked, request_state="first")

    @tool
    async def test_input_required_result_capabilities(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        known, asked = ctx.client_capabilities, {}
        if known is not None and known.elicitation is not None:
            asked |= ASK_NAME
        if known is not None and known.sampling is not None:
            asked["capital_question"] = sampling("What is the capital of France?", 100)
        return InputRequiredResult(input_requests=asked) if asked and not ctx.input_responses else "done"


def offer_readings(server: LabServer) -> None:
    @server.resource("test://static-text", mime_type="text/plain")
    async def static_text() -> str:
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/gif")
    async def static_binary() -> bytes:
        return b64decode(PIXEL)

    @server.resource("test://watched-resource", mime_type="text/plain")
    async def watched() -> str:
        return "Watched resource content"

    @server.resource("test://template/{id}/data", mime_type="application/json")
    async def template(id: str) -> str:
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})

    @server.prompt(description="Of the conformance suite.")
    async def test_simple_prompt() -> str:
        return "This is a simple prompt for testing."

    @server.prompt(description="Of the conformance suite.")
    async def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt(description="Of the conformance suite.")
    async def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
        resource = TextResourceContents(uri=resourceUri, mime_type="text/plain", text="Embedded resource content.")
        return [UserMessage(EmbeddedResource(resource=resource)), UserMessage("Please process it.")]

    @server.prompt(description="Of the conformance suite.")
    async def test_prompt_with_image() -> list[UserMessage]:
        return [
            UserMessage(ImageContent(data=PIXEL, mime_type="image/gif")),
            UserMessage("Please analyze the image above."),
        ]

    @server.prompt(description="Of the conformance suite.")
    async def test_input_required_result_prompt(ctx: Context[Any, Any]) -> Any:
        if answered(ctx, "user_context"):
            return "Prompt with context."
        return InputRequiredResult(
            input_requests={"user_context": asking("What context should the prompt use?", context=NAME)}
        )


def offer_tasks(server: LabServer) -> None:
    tool = server.tool(description="Of the conformance suite.", structured_output=False)

    @tool
    async def greet(name: str) -> str:
        return f"Hello, {name}!"

    @tool
    async def slow_compute(ctx: Context[Any, Any], seconds: float = 1, label: str = "") -> str:
        await waited(ctx, seconds)
        return f"{label} took {seconds} s"

    @tool
    async def failing_job(ctx: Context[Any, Any]) -> str:
        require_client_extension(ctx.request_context, tasks.IDENTIFIER)
        await waited(ctx, 0.2)
        raise ToolError("This job fails.")

    @tool
    async def protocol_error_job(ctx: Context[Any, Any]) -> str:
        await waited(ctx, 0.2)
        raise MCPError(INTERNAL_ERROR, "This job breaks the protocol.")

    @tool
    async def test_tool_with_task(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        require_client_extension(ctx.request_context, tasks.IDENTIFIER)
        answers = answered(ctx, "user_name")
        if answers is None:
            return InputRequiredResult(input_requests=ASK_NAME)
        await waited(ctx, 0.2)
        return f"Hello, {name_in(answers)}!"


def offer_asking_tasks(server: LabServer) -> None:
    tool = server.tool(description="Of the conformance suite.", structured_output=False)

    async def asked_once_a_task(ctx: Context[Any, Any], **asked: ElicitRequest) -> dict[str, Any] | InputRequiredResult:
        answers = answered(ctx, *asked)
        if answers is None:
            await waited(ctx, 0.2)
            return InputRequiredResult(input_requests=asked)
        return answers

    @tool
    async def confirm_delete(filename: str, ctx: Context[Any, Any]) -> str | InputRequiredResult:
        question = asking(f"Delete {filename}?", confirm={"type": "boolean"})
        given = await asked_once_a_task(ctx, confirmation=question)
        return given if isinstance(given, InputRequiredResult) else f"{filename}: {json.dumps(given)}"

    @tool
    async def multi_input(ctx: Context[Any, Any]) -> str | InputRequiredResult:
        given = await asked_once_a_task(ctx, first=asking("Who?", name=NAME), second=asking("And who?", name=NAME))
        return given if isinstance(given, InputRequiredResult) else json.dumps(given)


def main() -> None:
    """Serve on a free port of this machine."""
    log_to_stderr()
    tasks.LASTING, tasks.AFTER_S = frozenset({*tasks.LASTING, *LASTING}), 0.0  # pyright: ignore[reportConstantRedefinition]
    settings = load_settings()
    server = server_from_settings(settings, local_files=False)
    for offer in (offer_contents, offer_legacy, offer_questions, offer_readings, offer_tasks, offer_asking_tasks):
        offer(server)
    http_server.serve_http(server, settings, "127.0.0.1", int(sys.argv[1]), tokens=False)


if __name__ == "__main__":
    main()
