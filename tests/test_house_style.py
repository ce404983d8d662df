"""The house rules that a machine can check."""

import ast
import inspect
import statistics
from collections import Counter
from pathlib import Path

from mcp import Client

from gpu_mcp_server.mcp_api.server import INSTRUCTIONS_LIMIT, build_server
from gpu_mcp_server.mcp_api.toolset import discover
from gpu_mcp_server.package_files import PACKAGE
from tests.conftest import QUICK
from tests.stand_ins import Opener

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("gpu_mcp_server/**/*.py"), *ROOT.glob("toolsets/**/*.py")])
PREPOSITIONS = (
    "about above across after against ahead along among around at before behind below beside between beyond by for from "
    "in inside into near of off on onto out outside over past through to under with within without"
)
PARTICIPLES = (
    "begun broken brought built caught chosen come done drawn felt found given gone got grown heard held hidden kept "
    "known laid led left lent lost made meant met paid ran said seen sent shown sold spent stood stuck taken thrown told "
    "understood won worn written"
)
"""The irregular ones that are no verbs or nouns as well; the others end in -ed or -en."""
NO_PARTICIPLES = {"children", "open"}
SPECS = [spec for toolset in discover().values() for spec in toolset.tools]


def test_modules_fit_in_the_head():
    offences: list[str] = []
    for path in SOURCES:
        name, text = path.relative_to(ROOT), path.read_text(encoding="utf-8")
        if len(text.splitlines()) > 400:
            offences.append(f"{name}: more than 400 lines")
        functions = (n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)))
        offences += [f"{name}: {f.name} has more than 50 lines" for f in functions if lines_of(f) > 50]

    assert not offences, "\n".join(offences)


def test_most_modules_are_short():
    """One that says little is a detour, one that says much is not read to its end; 160 lines are three screens."""
    lengths = [len(path.read_bytes().splitlines()) for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]

    assert len(lengths) > 100
    assert statistics.median(lengths) <= 160


def test_folders_can_be_overlooked():
    """Counted are the modules that lie in a folder itself, `__init__` among them."""
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in SOURCES)

    assert folders["gpu_mcp_server"] > 1
    assert {folder: count for folder, count in folders.items() if count > 35} == {}


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines its body has, besides a docstring."""
    first = function.body[1 if ast.get_docstring(function) and len(function.body) > 1 else 0]
    return (function.body[-1].end_lineno or 0) - first.lineno + 1


def public_names() -> dict[tuple[str, str], ast.stmt]:
    """Return public classes, functions and methods by path and qualified name.

    Behaviours of the contract are left out: their names are the ids that users give.
    """
    found: dict[tuple[str, str], ast.stmt] = {}
    for path in SOURCES:
        todo: list[tuple[str, ast.stmt]] = [("", node) for node in ast.parse(path.read_bytes()).body]
        while todo:
            scope, node = todo.pop()
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
                continue
            called = [d.func for d in node.decorator_list if isinstance(d, ast.Call)]
            if not any(isinstance(f, ast.Attribute) and f.attr == "behaviour" for f in called):
                found[path.relative_to(ROOT).as_posix(), scope + node.name] = node
            if isinstance(node, ast.ClassDef):
                todo += [(f"{scope}{node.name}.", inner) for inner in node.body]
    return found


def names_to_come() -> set[tuple[str, str]]:
    """Return path and qualified name of what still waits for a better name; the third column proposes one."""
    lines = (ROOT / "tests" / "names_to_come.tsv").read_text(encoding="utf-8").splitlines()
    return {(line.split("\t")[0], line.split("\t")[1]) for line in lines}


def test_no_new_function_is_named_by_a_participle_or_preposition_alone():
    """`shown`, `of` and `built` leave open what is done with what: a function is verb and object, or what it returns."""

    def is_bare(word: str) -> bool:
        if word in NO_PARTICIPLES:
            return False
        return word in f"{PREPOSITIONS} {PARTICIPLES}".split() or ("_" not in word and word.endswith(("ed", "en")))

    bare = {
        at
        for at, node in public_names().items()
        if not isinstance(node, ast.ClassDef) and is_bare(at[1].split(".")[-1])
    }

    assert sorted(bare - names_to_come()) == []


def test_no_new_class_has_a_name_that_there_is():
    """A name that is searched for has one answer."""
    classes = [at for at, node in public_names().items() if isinstance(node, ast.ClassDef) and "." not in at[1]]
    often = Counter(name for _, name in classes)

    assert sorted({at for at in classes if often[at[1]] > 1} - names_to_come()) == []


def test_what_has_its_name_leaves_the_list_of_names_to_come():
    known = {(path.relative_to(ROOT).as_posix(), name) for path in SOURCES for name in defined_names(path)}

    assert sorted(names_to_come() - known) == []


def defined_names(path: Path) -> set[str]:
    """Return qualified names of what a module and its classes define, attributes among them."""
    found: set[str] = set()
    todo = [("", node) for node in ast.parse(path.read_bytes()).body]
    while todo:
        scope, node = todo.pop()
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(scope + node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {scope + target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ClassDef):
            todo += [(f"{scope}{node.name}.", inner) for inner in node.body]
    return found


def test_one_module_knows_where_the_package_is():
    """A module that counts the folders above itself looks in the wrong place once it moves, and nothing says so."""
    knowing = {"package_files.py", "hostd/own_code.py", "judge/folders.py"}
    beside = {
        "backends/deploy.py",
        "workers/multi_host_ranks.py",
        "workers/overlay_site.py",
        "workers/program_overlay.py",
        "workers/rank_launcher.py",
    }  # what lies beside them, or is them
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Name) and node.id == "__file__"
    }
    assert found == knowing | beside


def test_tools_are_three_statements_at_most():
    offences: list[str] = []
    for spec in SPECS:
        (function,) = ast.parse(inspect.getsource(spec.function)).body
        statements = [n for n in ast.walk(function) if isinstance(n, ast.stmt) and n is not function]
        if not isinstance(function, ast.AsyncFunctionDef):
            offences.append(f"{spec.name}: not async")
        if len(statements) - 1 > 3:
            offences.append(f"{spec.name}: more than 3 statements besides its docstring")

    assert not offences, "\n".join(offences)


async def test_every_tool_explains_itself_within_its_budget(tmp_path: Path):
    async with Client(build_server(Opener(tmp_path), discover(), only=["all"])) as client:
        tools = (await client.list_tools()).tools

    for tool in tools:
        assert tool.description and tool.title and tool.annotations, tool.name
        assert len(tool.description.splitlines()[0]) <= 90, tool.name
        assert len(tool.description) <= 500, tool.name
        assert tool.output_schema is None, tool.name
        assert "additionalProperties" not in tool.input_schema, tool.name
        text = tool.model_dump_json(by_alias=True, exclude_none=True)
        assert "$ref" not in text and '"null"' not in text, tool.name
        assert '"title"' not in str(tool.input_schema).replace("'", '"'), tool.name
        assert len(text) <= (2400 if len(tool.input_schema["properties"]) > 8 else 1100), tool.name
        assert not {"anyOf", "oneOf", "allOf"} & tool.input_schema.keys(), tool.name
        for name, parameter in tool.input_schema["properties"].items():
            said = parameter.get("description", "")
            assert len(said.split()) >= 4, f"{tool.name}({name}) is not understood alone: {said!r}"
        hints = tool.annotations
        assert None not in (hints.read_only_hint, hints.open_world_hint), tool.name
        assert (hints.destructive_hint is None) == hints.read_only_hint, tool.name


async def test_the_default_list_of_tools_is_small(tmp_path: Path):
    server = build_server(Opener(tmp_path), discover())
    async with Client(server) as client:
        listed = await client.list_tools()

    assert sum(len(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in listed.tools) <= 20_000
    assert len(server.instructions or "") <= INSTRUCTIONS_LIMIT


def test_the_glossary_is_short_and_in_order():
    lines = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")][2:]
    words = [row[0] for row in rows]

    assert 0 < len(rows) <= 60
    assert words == sorted(set(words))
    assert [row for row in rows if len(row) != 2 or not row[1].endswith(".") or len(row[1].split()) > 25] == []


def test_what_make_test_runs_is_there():
    lines = [line.split("::") for line in QUICK]
    missing = [f"{at[0]}: no such file or folder" for at in lines if not (ROOT / at[0]).exists()]
    missing += [
        f"{at[0]}: no test {at[1]}"
        for at in lines
        if len(at) > 1 and f"def {at[1]}(" not in (ROOT / at[0]).read_text(encoding="utf-8")
    ]

    assert not missing, "\n".join(missing)
