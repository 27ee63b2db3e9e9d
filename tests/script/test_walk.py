"""How a script is walked: names, order, conditions, contexts, calls of its own functions."""

from __future__ import annotations

import textwrap

import pytest

from precision_audit.script import Script, read
from precision_audit.script.conditions import Atom, assignments, atoms, holds, joined, negated


def events(text: str, *kinds: str) -> list[tuple[str, int]]:
    found = read("import torch\n" + textwrap.dedent(text)).events
    return [(each.kind, each.line) for each in found if not kinds or each.kind in kinds]


def loop(body: str) -> Script:
    return read("import torch\ndef f(model, loader, optimizer, scaler):\n    for x in loader:\n" + textwrap.indent(
        textwrap.dedent(body), "        "
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("import torch", "torch.amp.GradScaler"),
        ("import torch as t", "t.amp.GradScaler"),
        ("from torch import amp", "amp.GradScaler"),
        ("from torch.amp import GradScaler as GS", "GS"),
        ("import torch.cuda.amp as a", "a.GradScaler"),
        ("from torch.amp.grad_scaler import GradScaler", "GradScaler"),
    ],
)
def test_an_import_is_known_by_its_full_name(line: str, name: str) -> None:
    (made,) = read(f"{line}\ns = {name}()\n").events
    assert made.kind == "make" and made.subject is not None and made.subject.kind == "scaler"


def test_a_call_of_the_scripts_own_function_is_followed_with_its_arguments() -> None:
    text = """
    class Step:
        def __init__(self, opt):
            self.opt = opt

        def __call__(self, loss):
            loss.backward()
            self.opt.step()

    model = torch.nn.Linear(2, 2)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    step = Step(opt)
    for x in data:
        step(model(x).mean())
    """
    script = read("import torch\n" + textwrap.dedent(text))
    made, *_, last = script.events
    assert [each.kind for each in script.events] == ["make", "forward", "backward", "step"]
    assert last.subject is made.subject and last.visits == (1,) and last.function == "__call__"
    assert made.subject is not None and [each.name for each in made.subject.of] == ["torch.nn.Linear"]


def test_functions_that_call_each_other_end() -> None:
    assert events("def a():\n    b()\n\ndef b():\n    a()\n    loss.backward()\n\na()\n") == [("backward", 7)]


def test_a_closure_given_to_step_is_run_by_it() -> None:
    text = """
    def train(net):
        opt = torch.optim.LBFGS(net.parameters())
        for i in range(3):
            def closure():
                opt.zero_grad()
                loss = net(i)
                loss.backward()
                return loss
            opt.step(closure)
    """
    assert [kind for kind, _ in events(text)] == ["make", "zero", "forward", "backward", "step"]


def test_what_follows_continue_runs_under_the_opposite() -> None:
    script = loop("if bad(x):\n    optimizer.zero_grad()\n    continue\nmodel(x).mean().backward()\noptimizer.step()")
    (only,) = script.loops
    backward = next(each for each in only.events if each.kind == "backward")
    for truth, events in only.scenarios(backward, kinds=("zero", "step")):
        assert [each.kind for each in events] == ["backward", "step"] and not any(truth.values())
    zero = next(each for each in only.events if each.kind == "zero")
    assert list(only.scenarios(zero, backward, kinds=())) == []  # never in one batch


def test_two_ifs_with_one_test_agree() -> None:
    script = loop(
        "loss = model(x).mean()\n"
        "if use_amp:\n    scaler.scale(loss).backward()\nelse:\n    loss.backward()\n"
        "if not use_amp:\n    optimizer.step()\nelse:\n    scaler.step(optimizer)\n"
    )
    (only,) = script.loops
    ways = [[(each.kind, each.scaler is not None) for each in found] for _, found in only.scenarios(
        kinds=("backward", "step"))]  # fmt: skip
    assert sorted(ways) == [[("backward", False), ("step", False)], [("backward", True), ("step", True)]]


def test_a_scaler_made_under_a_flag_is_there_under_the_flag() -> None:
    text = """
    import torch
    scaler = torch.amp.GradScaler("cuda") if args.amp else None
    for x in data:
        loss = net(x)
        if scaler is not None:
            scaler.scale(loss).backward()
        if args.amp:
            scaler.step(opt)
        else:
            opt.step()
    """
    (only,) = read(textwrap.dedent(text)).loops
    for _, found in only.scenarios(kinds=("backward", "step")):
        assert (found[0].kind == "backward") == (found[-1].scaler is not None)


@pytest.mark.parametrize(
    ("with_", "seen"),
    [
        ('torch.autocast("cuda", dtype=torch.float16)', ("fp16", "cuda", True)),
        ('torch.autocast("cuda")', ("fp16", "cuda", True)),
        ('torch.autocast("cpu")', ("bf16", "cpu", True)),
        ("torch.autocast(device_type=d, dtype=torch.bfloat16)", ("bf16", "", True)),
        ('torch.autocast("cuda", torch.bfloat16, False)', ("bf16", "cuda", False)),
        ("torch.cuda.amp.autocast(False, torch.half)", ("fp16", "cuda", False)),
        ('torch.autocast("cuda", enabled=False)', ("fp16", "cuda", False)),
        ('torch.autocast("cuda", dtype=chosen)', ("", "cuda", True)),
        ('torch.autocast("cuda", **options)', ("fp16", "cuda", None)),
    ],
)
def test_an_autocast_region(with_: str, seen: tuple[str, str, bool | None]) -> None:
    script = loop(f"with {with_}:\n    loss = model(x)")
    (forward,) = [each for each in script.events if each.kind == "forward"]
    (region,) = forward.contexts
    assert (region.format, region.device, region.enabled) == seen


def test_formulas() -> None:
    a, b = Atom("a"), Atom("b")
    both = joined("and", [a, True, b])
    assert joined("and", [a, False]) is False and joined("or", [a, True]) is True and joined("or", [False, a]) is a
    assert negated(negated(a)) is a and negated(True) is False
    table = [(truth[a], truth[b], holds(both, truth)) for truth in assignments(atoms([(both, True)]))]
    assert sorted(table) == [(x, y, x and y) for x in (False, True) for y in (False, True)]


def test_too_many_tests_are_left_alone() -> None:
    assert list(assignments(Atom(str(number)) for number in range(20))) == []
    tests = "".join(f"if a{number}:\n    optimizer.zero_grad()\n" for number in range(20))
    script = loop(f"model(x).mean().backward()\n{tests}optimizer.step()")
    (only,) = script.loops
    assert list(only.scenarios(kinds=("zero", "step"))) == []


def test_a_handler_is_no_part_of_the_usual_way() -> None:
    script = loop("try:\n    model(x).backward()\nexcept RuntimeError:\n    optimizer.zero_grad()\noptimizer.step()")
    (only,) = script.loops
    assert [each.kind for each in only.of("zero")] == []
    assert any(each.kind == "zero" and each.rare for each in only.events)


def test_a_generator_of_the_script_is_walked_where_it_is_looped_over() -> None:
    text = """
    def losses(model, opt):
        for x in data:
            opt.zero_grad()
            yield model(x).mean()

    model = torch.nn.Linear(2, 2)
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    for number, loss in enumerate(losses(model, opt)):
        loss.backward()
        opt.step()
    """
    found = read("import torch\n" + textwrap.dedent(text))
    assert [each.kind for each in found.events] == ["make", "zero", "forward", "backward", "step"]
    made, zero, forward, backward, step = found.events
    assert zero.subject is made.subject is step.subject
    assert (zero.visits, step.visits) == ((1, 2), (1,)) and found.places == 1
    assert backward.subject is not None and backward.subject.forwards == {forward.index}


def test_a_generator_that_nothing_loops_over_is_walked_once() -> None:
    text = """
    class Trainer:
        def steps(self, loader, optimizer):
            for x in loader:
                self.loss(x).backward()
                yield optimizer.step()
    """
    assert events(text) == [("backward", 6), ("step", 7)]


@pytest.mark.parametrize(
    ("made", "visits"),
    [
        ("[step(x) for x in loader]", (1,)),
        ("sum(step(x) for part in loader for x in part)", (1,)),
        ("[step(x) for x in (a, b)]", (1,)),
        ("[step(p) for p in model.parameters()]", ()),
    ],
)
def test_a_comprehension_over_batches_is_a_loop(made: str, visits: tuple[int, ...]) -> None:
    text = f"""
    model = torch.nn.Linear(2, 2)
    step = lambda x: model(x)
    print({made})
    """
    (event,) = (each for each in read("import torch\n" + textwrap.dedent(text)).events if each.kind == "forward")
    assert event.visits == visits


def test_a_classmethod_is_given_its_class_and_a_constant_that_is_yielded_is_none() -> None:
    text = """
    class Task:
        def __init__(self):
            self.opt = torch.optim.SGD([], lr=1.0)

        @classmethod
        def made(cls):
            return cls()

    def flags():
        yield True
        yield False

    for flag in flags():
        if flag:
            Task.made().opt.step()
    """
    found = [each for each in read("import torch\n" + textwrap.dedent(text)).events if each.kind == "step"]
    assert len(found) == 1 and found[0].subject is not None and found[0].subject.kind == "optimizer"
    assert [atom.varies for atom in atoms(found[0].guards)] == [True]
