"""What is on the pictures, read back from the SVG; that they are the same each time; what is refused."""

from __future__ import annotations

import importlib.util
import math
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

import precision_audit as pa
from precision_audit.pictures.training_curves import curve
from precision_audit.pictures.underflow_and_scale import falls
from precision_audit.records import InputError
from tests.pictures.ranges import made, training

SVG = "{http://www.w3.org/2000/svg}"
GRADIENTS = training(made({-30: 60, -25: 20, -18: 10, -3: 5}, zeros=5), activations=(made({-20: 1}, value="relu#0"),))
SCALES = [65536.0, 32768.0, 32768.0, 65536.0, 32768.0]

DRAWN: dict[str, Callable[[Path], Path]] = {
    "histogram": lambda path: pa.pictures.gradient_histogram(GRADIENTS, path),
    "scaled": lambda path: pa.pictures.gradient_histogram(GRADIENTS, path, scale=1024.0),
    "nan": lambda path: pa.pictures.gradient_histogram(training(made({-9: 2}, nan=1, infinite=2)), path, scale=2.0),
    "wide": lambda path: pa.pictures.gradient_histogram(training(made({-149: 1, 127: 1})), path),
    "bf16": lambda path: pa.pictures.gradient_histogram(GRADIENTS, path, "bf16"),
    "fp8": lambda path: pa.pictures.gradient_histogram(GRADIENTS, path, "fp8_e4m3fn"),
    "own format": lambda path: pa.pictures.gradient_histogram(GRADIENTS, path, "e5m3b12"),
    "zeros": lambda path: pa.pictures.gradient_histogram(training(made({}, zeros=9)), path, scale=8.0),
    "empty": lambda path: pa.pictures.gradient_histogram(training(), path, kind=("weights", "weight_gradients")),
    "scales": lambda path: pa.pictures.underflow_and_scale([0.1, 0.2, 0.3, 0.2, 0.1], SCALES, path),
    "no scales": lambda path: pa.pictures.underflow_and_scale([0.1, math.nan], [], path),
    "no steps": lambda path: pa.pictures.underflow_and_scale([], [], path),
    "curves": lambda path: pa.pictures.training_curves({"fp32": [[3, 2, 1], [3, 2, 2]], "bf16": [3, 2, 1]}, path),
    "diverged": lambda path: pa.pictures.training_curves({"fp32": [3, 2, 1], "fp16": [3, math.inf, 1]}, path),
    "panels": lambda path: pa.pictures.training_curves(
        {f"f{i}": [3.0, 0.1] for i in range(8)}, path, side_by_side=True
    ),
    "no curves": lambda path: pa.pictures.training_curves({}, path),
    "all lost": lambda path: pa.pictures.training_curves({"fp16": [math.nan]}, path),
}


def texts(path: Path) -> list[str]:
    found = ElementTree.parse(path).getroot().iter(f"{SVG}text")
    return ["".join(each.itertext()).strip() for each in found]


def heights(path: Path, what: str) -> list[float]:
    """Heights in points of the bars of one name, in order, from the SVG's path data."""
    root = ElementTree.parse(path).getroot()
    found = []
    while True:
        group = root.find(f".//{SVG}g[@id='weight_gradients-{what}-{len(found)}']/{SVG}path")
        if group is None:
            return found
        ordinates = [float(point) for point in re.findall(r"[ML] \S+ (\S+)", group.attrib["d"])]
        found.append(max(ordinates) - min(ordinates))


@pytest.mark.parametrize("name", DRAWN)
def test_the_same_bytes_each_time_and_well_formed(name: str, tmp_path: Path) -> None:
    first, second = DRAWN[name](tmp_path / "one.svg"), DRAWN[name](tmp_path / "two.svg")
    assert first == tmp_path / "one.svg"
    assert first.read_bytes() == second.read_bytes()
    ids = re.findall(r' id="([^"]*)"', first.read_text())
    assert len(ids) == len(set(ids)) > 5
    assert not re.search(r"\d{4}-\d\d-\d\d|[Mm]atplotlib v", first.read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.svg", "two.svg"]


@pytest.mark.parametrize("name", ["scaled", "scales", "diverged"])
def test_png_has_its_size_and_no_date(name: str, tmp_path: Path) -> None:
    path = DRAWN[name](tmp_path / "one.PNG")
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert width == 9 * 150 and height > 400
    assert b"Software" not in content and b"tIME" not in content
    assert DRAWN[name](tmp_path / "two.png").read_bytes() == content


def test_limits_regions_and_figures_are_named(tmp_path: Path) -> None:
    said = texts(pa.pictures.gradient_histogram(GRADIENTS, tmp_path / "a.svg"))
    for word in ("becomes zero", "in fp16", "subnormal", "representable", "range unused", "2⁻²⁴", "2⁻¹⁴", "65504"):
        assert word in said, word
    assert "(2018 paper) 2⁻²⁷" in said and "Weight gradients of fc.weight, 3 steps" in said
    # 60 + 20 of 100 lie below 2⁻²⁴; 1.5 · 2⁻²⁵ rounds up to 2⁻²⁴, so 60 become zero
    assert "100 elements; zero: 5 %; not zero, below 2⁻²⁴: 80 % (60 % round to zero)" in said


def test_bars_are_as_high_as_their_shares(tmp_path: Path) -> None:
    """On a logarithmic axis, heights differ by the logarithm of the ratio of shares."""
    path = pa.pictures.gradient_histogram(GRADIENTS, tmp_path / "a.svg", scale=1024.0)
    for what in ("plain", "scaled"):
        first, second, third, fourth = heights(path, what)  # 60, 20, 10 and 5 %
        assert math.isclose((first - second) / (second - third), math.log(3) / math.log(2), rel_tol=1e-3)
        assert math.isclose(second - third, third - fourth, rel_tol=1e-3)
    (zeros,) = heights(path, "zeros")
    assert math.isclose(zeros, heights(path, "plain")[3], rel_tol=1e-4)
    assert heights(path, "lost") == []


def test_a_scale_is_shown_as_an_arrow_and_counted(tmp_path: Path) -> None:
    said = texts(pa.pictures.gradient_histogram(GRADIENTS, tmp_path / "a.svg", scale=1024.0))
    assert "× 2¹⁰" in said and "times the loss scale 2¹⁰" in said
    assert "scaled: below 2⁻²⁴: 0 %" in said  # 2⁻³⁰ becomes 2⁻²⁰
    said = texts(pa.pictures.gradient_histogram(GRADIENTS, tmp_path / "b.svg", scale=2.0**20))
    assert "scaled: below 2⁻²⁴: 0 %; beyond 65504: 5 %" in said and "overflows" in said  # 2⁻³ becomes 2¹⁷


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zeros", "all weight gradients are zero"),
        ("empty", "no weight gradients were recorded"),
        ("nan", "5 elements; zero: 0 %; NaN or infinite: 60 %; not zero, below 2⁻²⁴: 0 %"),
        ("no scales", "trained without a loss scale"),
        ("no steps", "no gradients were measured"),
        ("scales", "Loss scale: first 65536, last 32768, 2 steps skipped (▼)"),
        ("no curves", "no steps were given"),
        ("all lost", "no finite step"),
        ("diverged", "fp16: NaN or infinite from step 2"),
        ("curves", "fp32, 2 runs"),
        ("bf16", "about 2¹²⁸"),
        ("fp8", "448"),
    ],
)
def test_what_is_missing_or_lost_is_said(name: str, expected: str, tmp_path: Path) -> None:
    assert expected in texts(DRAWN[name](tmp_path / "a.svg"))


def test_one_parameter_alone(tmp_path: Path) -> None:
    both = training(made({-30: 1}, value="a"), made({-3: 1}, value="b"))
    said = texts(pa.pictures.gradient_histogram(both, tmp_path / "a.svg", parameter="b"))
    assert "Weight gradients of b, 3 steps" in said and "1 element; zero: 0 %; not zero, below 2⁻²⁴: 0 %" in said


def test_curves_by_arithmetic() -> None:
    found = curve("fp32", [[4.0, 2.0, 0.0], [2.0, 2.0, 2.0]])
    assert (found.mean, found.lowest, found.highest) == ((3.0, 2.0, 1.0), (2.0, 2.0, 0.0), (4.0, 2.0, 2.0))
    assert curve("bf16", [4.0, 2.0, 0.0], smooth=2).mean == (4.0, 3.0, 1.0)
    lost = curve("fp16", [[4.0, 2.0, math.nan], [2.0, 2.0]])
    assert (lost.mean, lost.lost) == ((3.0, 2.0), 0)  # the shorter run ends first
    assert curve("fp16", [1.0, math.inf, 1.0]).lost == 2


def test_a_fall_of_the_scale_is_a_skipped_step() -> None:
    assert falls(SCALES) == [1, 4]
    assert falls([]) == falls([8.0]) == falls([8.0, 16.0]) == []


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda at: pa.pictures.gradient_histogram(GRADIENTS, at / "a.pdf"), "written as .svg or .png"),
        (lambda at: pa.pictures.gradient_histogram(GRADIENTS, at / "no" / "a.svg"), "there is no folder"),
        (lambda at: pa.pictures.gradient_histogram(GRADIENTS, at / "a.svg", "fp61"), "no such format"),
        (lambda at: pa.pictures.gradient_histogram(GRADIENTS, at / "a.svg", "mxfp4"), "has no fixed limits"),
        (lambda at: pa.pictures.gradient_histogram(GRADIENTS, at / "a.svg", kind="weight_gradient"), "did you mean"),
        (lambda at: pa.pictures.gradient_histogram(GRADIENTS, at / "a.svg", kind=()), "nothing to draw"),
        (lambda at: pa.pictures.gradient_histogram(GRADIENTS, at / "a.svg", parameter="fc.wait"), "'fc.weight'"),
        (lambda at: pa.pictures.gradient_histogram(GRADIENTS, at / "a.svg", scale=3.0), "power of two"),
        (lambda at: pa.pictures.underflow_and_scale([0.1], [1.0, 2.0], at / "a.svg"), "1 steps and scales 2"),
        (lambda at: pa.pictures.underflow_and_scale([12.0], [1.0], at / "a.svg"), "divide percentages by 100"),
        (lambda at: pa.pictures.training_curves({"fp32": "abc"}, at / "a.svg"), "a sequence of numbers"),
        (lambda at: pa.pictures.training_curves({"fp32": [1.0]}, at / "a.svg", smooth=0), "smooth=0"),
        (lambda at: pa.pictures.training_curves({str(i): [1.0] for i in range(7)}, at / "a.svg"), "at most 6"),
    ],
)
def test_refused_in_one_line(call: Callable[[Path], Path], expected: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        call(tmp_path)
    assert expected in str(refused.value) and "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"precision-audit\[pictures\]"):
        DRAWN["curves"](tmp_path / "a.svg")


def test_settings_and_backend_of_the_user_stay_and_make_no_difference(tmp_path: Path) -> None:
    import matplotlib

    plain = DRAWN["scaled"](tmp_path / "a.svg").read_bytes()
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "black", "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        assert DRAWN["scaled"](tmp_path / "b.svg").read_bytes() == plain
        assert dict(matplotlib.rcParams) == before


def test_nothing_is_imported_before_a_picture_is_drawn_and_never_pyplot(tmp_path: Path) -> None:
    program = (
        "import sys, precision_audit as pa; pa.pictures; assert 'matplotlib' not in sys.modules; "
        f"pa.pictures.training_curves({{'a': [1.0]}}, {str(tmp_path / 'a.svg')!r}); "
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_picture_is_in_the_table_and_documented() -> None:
    folder = Path(pa.pictures.__file__).parent
    assert all((folder / f"{name}.py").is_file() for name in pa.pictures.PICTURES)
    for name, draw in pa.pictures.PICTURES.items():
        assert getattr(pa.pictures, name) is draw
        assert "Raises InputError" in (draw.__doc__ or "")
