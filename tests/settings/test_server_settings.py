import os
import stat
from pathlib import Path

import pytest

from gpu_mcp_server.errors import ConfigError
from gpu_mcp_server.settings.server_settings import (
    LocalHost,
    SshHost,
    default_data_dir,
    load_settings,
    user_config_file,
)


@pytest.fixture(autouse=True)
def clean_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GPU_MCP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    user_config_file().parent.mkdir(parents=True)
    return project


def user_file(text: str) -> None:
    user_config_file().write_text(text)


def project_file(text: str) -> None:
    Path("gpu-mcp.toml").write_text(text)


def test_nothing_configured_means_this_machine_and_safe_defaults():
    settings = load_settings()
    assert settings.hosts == {"local": LocalHost()}
    assert settings.min_level is None
    assert not settings.accept_unconfined
    assert not settings.allow_fetch
    assert settings.data_dir == default_data_dir()
    assert set(settings.config_sources().values()) == {"default"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")
def test_data_of_root_lives_in_var_lib():
    assert default_data_dir() == Path("/var/lib/gpu-mcp-server")


def test_the_project_file_adds_to_the_users_hosts_and_the_environment_overrides_both(monkeypatch: pytest.MonkeyPatch):
    user_file('read_only = true\n[hosts.box]\nkind = "ssh"\nhost = "box.example"\nport = 22\n')
    project_file('[hosts.box]\nport = 2222\n[hosts.other]\nkind = "ssh"\nhost = "o"\n')
    monkeypatch.setenv("GPU_MCP_HOSTS__BOX__USER", "ada")
    monkeypatch.setenv("GPU_MCP_TOOLSETS", "core, nccl")
    settings = load_settings(default_host="box", min_level=None)
    assert list(settings.hosts) == ["local", "box", "other"]
    assert settings.hosts["box"] == SshHost(host="box.example", port=2222, user="ada")
    assert settings.toolsets == ["core", "nccl"]
    sources = settings.config_sources()
    assert sources["hosts.box.host"] == str(user_config_file())
    assert sources["hosts.box.port"] == str(Path("gpu-mcp.toml").absolute())
    assert sources["hosts.box.user"] == "environment GPU_MCP_HOSTS__BOX__USER"
    assert sources["default_host"] == "flag"
    assert sources["read_only"] == str(user_config_file())
    assert sources["allow_fetch"] == "default"


def test_a_list_of_a_host_comes_from_the_environment_as_json(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPU_MCP_HOSTS__LOCAL__ROOTS", '["/opt/tools"]')
    assert load_settings().hosts["local"].roots == ["/opt/tools"]


def test_local_needs_no_kind_and_files_are_expanded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/ada")
    user_file(
        'data_dir = "~/lab"\n[hosts.local]\njudge_python = "/opt/py/bin/python"\n'
        '[hosts.b]\nkind="ssh"\nhost="b"\nidentity_file="~/.ssh/id"\n'
    )
    settings = load_settings()
    box = settings.hosts["b"]
    assert settings.data_dir == Path("/home/ada/lab")
    assert settings.hosts["local"].judge_python == "/opt/py/bin/python"
    assert isinstance(box, SshHost)
    assert box.identity_file == Path("/home/ada/.ssh/id")


def test_unconfined_needs_its_acceptance_beside_it():
    with pytest.raises(ConfigError, match="accept_unconfined = true"):
        load_settings(min_level="unconfined")
    assert load_settings(min_level="unconfined", accept_unconfined=True).min_level == "unconfined"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("read_onyl = true", ["config.toml", "read_onyl", "not permitted"]),
        ("read_only = 'perhaps'", ["config.toml", "read_only", "boolean"]),
        ("read_only = ", ["config.toml", "not TOML", "Invalid value"]),
        ('min_level = "strong"', ["config.toml", "min_level", "'namespaces'"]),
        ('[hosts.box]\nkind = "ssh"\nhost = "b"\nprot = 1', ["config.toml", "hosts.box.prot"]),
        ('[hosts.box]\nkind = "ssh"', ["config.toml", "hosts.box.host", "required"]),
        ('[hosts.box]\nkind = "telnet"\nhost = "b"', ["config.toml", "hosts.box", "'ssh'"]),
        ('[hosts.box]\nkind = "ssh"\nhost = "-oProxyCommand=x"', ["hosts.box.host"]),
        ('[hosts."a b"]\nkind = "ssh"\nhost = "b"', ["a b"]),
        ('[hosts.local]\nkind = "ssh"\nhost = "b"', ["hosts.local", "another name"]),
        ('default_host = "nowhere"', ["default_host", "nowhere", "local"]),
        ("hosts = 3", ["config.toml", "hosts"]),
    ],
)
def test_a_wrong_file_is_named_with_key_and_reason(text: str, words: list[str]):
    user_file(text)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    for word in words:
        assert word in str(caught.value)


def test_a_misspelt_variable_of_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPU_MCP_READONLY", "1")
    with pytest.raises(ConfigError, match="GPU_MCP_READONLY"):
        load_settings()


def test_a_wrong_value_names_its_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPU_MCP_READ_ONLY", "perhaps")
    with pytest.raises(ConfigError, match="environment GPU_MCP_READ_ONLY: read_only"):
        load_settings()


def test_broken_json_in_the_environment_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GPU_MCP_HOSTS", "{")
    with pytest.raises(ConfigError, match="JSON"):
        load_settings()


@pytest.mark.parametrize(
    "text",
    [
        'min_level = "unconfined"\naccept_unconfined = true',
        "allow_fetch = true",
        '[hosts.local]\npython = "./evil"',
        '[hosts.local]\njudge_python = "./evil"',
        '[hosts.local]\ncuda = "./evil"',
        '[hosts.local]\nstate_dir = "./planted"',
        '[hosts.local]\nsetup = ["./evil"]',
        '[hosts.local]\nroots = ["/root/.ssh"]',
        '[hosts.box]\nkind = "ssh"\nhost = "b"\nssh_config = "./config"',
        '[hosts.box]\nkind = "ssh"\nhost = "b"\nknown_hosts = "./known"',
    ],
)
def test_a_cloned_project_cannot_widen_what_jobs_may_do(text: str):
    project_file(text)
    with pytest.raises(ConfigError, match=r"project's file may not"):
        load_settings()
    Path("gpu-mcp.toml").unlink()
    user_file(text)
    load_settings()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_a_configuration_error():
    user_file("")
    user_config_file().chmod(stat.S_IWUSR)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings()
