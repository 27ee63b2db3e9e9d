"""Settings: command line over pyproject.toml over defaults, and mistakes in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_audit.cli import config, options
from precision_audit.records import InputError


def write(folder: Path, body: str, name: str = "pyproject.toml", header: str = "[tool.precision-audit]\n") -> Path:
    file = folder / name
    file.write_text(f"[project]\nname = 'x'\n\n{header}{body}" if header else body)
    return file


def test_defaults_leave_the_device_to_the_policy(tmp_path: Path) -> None:
    found = config.settings({}, tmp_path)
    assert (found.policy, found.device, found.fail_on, found.output_format) == ("bf16-inference", None, "error", "full")
    assert found.origins == {}


def test_the_command_line_beats_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'policy = "fp16-inference"\ndevice = "h100"\nexit_zero = true\nignore = "PA4"\n')
    found = config.settings({"policy": "fp32", "select": ["PA1,PA2", "PA3"]}, tmp_path)
    assert (found.policy, found.device, found.exit_zero) == ("fp32", "h100", True)
    assert found.ignore == ("PA4",)
    assert found.select == ("PA1", "PA2", "PA3")
    assert found.origins["policy"] == "command line"
    assert found.origins["device"] == str(file)


def test_the_nearest_file_with_our_table_is_read(tmp_path: Path) -> None:
    write(tmp_path, 'device = "a100"\n')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    write(inner.parent, "this is = not toml =\n", header="")
    assert config.settings({}, inner).device == "a100"
    assert config.settings({"isolated": True}, inner).device is None


def test_a_file_may_be_named(tmp_path: Path) -> None:
    write(tmp_path, 'device = "a100"\n')
    other = write(tmp_path, 'device = "h200"\n', name="ci.toml", header="")
    assert config.settings({"config": str(other)}, tmp_path).device == "h200"
    with pytest.raises(InputError, match="no such file"):
        config.settings({"config": "gone.toml"}, tmp_path)
    bare = write(tmp_path, "", header="")
    with pytest.raises(InputError, match=r"no table \[tool.precision-audit\]"):
        config.settings({"config": str(bare)}, tmp_path)


def test_paths_start_at_the_file(tmp_path: Path) -> None:
    write(tmp_path, 'policy = "ours/p.yaml"\ncheckpoint = "w.safetensors"\noutput = ["a.json"]\n')
    found = config.settings({}, tmp_path)
    assert found.policy == str(tmp_path / "ours/p.yaml")
    assert found.checkpoint == str(tmp_path / "w.safetensors")
    assert found.output == (str(tmp_path / "a.json"),)


@pytest.mark.parametrize(
    ("body", "line", "parts"),
    [
        ('polcy = "fp32"\n', 5, ["unknown key", "did you mean policy?"]),
        ('policy = "fp32"\n\nzzz = 1\n', 7, ["zzz: unknown key", "expected one of policy"]),
        ("policy = 3\n", 5, ["expected a string"]),
        ('exit-zero = "yes"\n', 5, ["expected true or false"]),
        ("input = [1]\n", 5, ["a string or a list of strings"]),
        ('fail-on = "errors"\n', 5, ["did you mean error?"]),
        ('output-format = "html"\n', 5, ["not available in this version"]),
        ('baseline = "b.json"\n', 5, ["not available in this version"]),
        ('select = "402"\n', 5, ["expected PA and digits"]),
        ('checkpoint = ""\n', 5, ["is empty", "W.safetensors"]),
        ('output = ["a.json", ""]\n', 5, ["is empty"]),
        ('check-plan = "a\\u0000b"\n', 5, ["has a NUL character"]),
        ("steps = 0\n", 5, ["above zero"]),
        ("debug = true\n", 5, ["belongs on the command line only"]),
    ],
)
def test_mistakes_name_file_line_and_key(tmp_path: Path, body: str, line: int, parts: list[str]) -> None:
    file = write(tmp_path, body)
    with pytest.raises(InputError) as error:
        config.settings({}, tmp_path)
    assert str(error.value).startswith(f"{file}:{line}: ")
    for part in parts:
        assert part in str(error.value)


def test_broken_toml_names_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "policy = \n")
    with pytest.raises(InputError) as error:
        config.settings({}, tmp_path)
    assert str(error.value).startswith(f"{file}: not readable as TOML")
    assert "line 5" in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'[[tool.precision-audit]]\npolicy = "fp32"\n', "no table"),
        (b'[tool]\nprecision-audit = "x"\n', "no table"),
        (b"tool = {precision-audit = {policy = 3}}\n", "policy = 3"),
        (b"[tool.'precision-audit']\npolicy = 3\n", "policy = 3"),
        (b"\xef\xbb\xbf[tool.precision-audit]\npolicy = 3\n", "policy = 3"),  # a byte-order mark
        (b'[tool.precision-audit]\npolicy = "\xe9"\n', "not readable as TOML"),
        (b'[tool.precision-audit]\nfail-on = "never"\nfail_on = "error"\n', "given twice"),
    ],
)
def test_our_table_in_whatever_spelling_is_never_passed_over(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "pyproject.toml").write_bytes(text)
    with pytest.raises(InputError, match=words):
        config.settings({}, tmp_path)


@pytest.mark.parametrize("name", ["precision_audit", "Precision-Audit", '"precision audit"', "precisionaudit"])
def test_a_table_with_nearly_our_name_is_refused(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, 'policy = "fp32"\n', header=f"[tool.{name}]\n")
    with pytest.raises(InputError) as error:
        config.settings({}, tmp_path)
    said = f"{file}:4: [tool.{name.strip(chr(34))}] is not read; expected [tool.precision-audit], rename it"
    assert str(error.value) == said
    assert config.settings({"isolated": True}, tmp_path).policy == "bf16-inference"
    with pytest.raises(InputError, match="is not read"):
        config.settings({"config": str(file)}, tmp_path)
    write(tmp_path, 'policy = "fp16-inference"\n[tool.another]\n')  # another tool's
    assert config.settings({}, tmp_path).policy == "fp16-inference"


def test_a_file_in_which_tool_is_no_table(tmp_path: Path) -> None:
    other = write(tmp_path, "tool = 3\n", header="")
    assert config.settings({}, tmp_path).policy == "bf16-inference"
    with pytest.raises(InputError, match="no table"):
        config.settings({"config": str(other)}, tmp_path)


def test_every_option_has_a_field_or_is_refused() -> None:
    outside = {"config", "isolated"}
    for option in options.OPTIONS:
        known = hasattr(config.Settings, option.key.replace("-", "_"))
        assert known or option.later == ("*",) or option.key in outside, option.key
        assert option.help
