"""Recipe texts: what is read, how everything else is refused, and that nothing in a text is ever run."""

from __future__ import annotations

import builtins
import re
import sys
import warnings
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import accord
from accord.check import Count, Fraction, NonNegative, Positive, Whole, check
from accord.recipe import entries, names, read, snake

SPACES = st.sampled_from(["", " ", "  "])


# --- reading ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("fedavg", accord.fedavg()),
        ("  fedavg  ", accord.fedavg()),
        ("fedavg()", accord.fedavg()),
        ("fedavg(uniform)", accord.fedavg("uniform")),
        ("fedavg('uniform')", accord.fedavg("uniform")),
        ('fedavg(weights="uniform")', accord.fedavg("uniform")),
        ("fedprox(1)", accord.fedprox(1.0)),
        ("fedprox(mu=1e-4)", accord.fedprox(0.0001)),
        ("fedprox(mu=0)", accord.fedprox(0)),
        ("scaffold + constrain", accord.scaffold() + accord.constrain()),
        ("scaffold+constrain()", accord.scaffold() + accord.constrain()),
        ("scaffold + (constrain + sgd(lr=0.1))", accord.scaffold() + accord.constrain() + accord.sgd(lr=0.1)),
        ("fedavg + perturb(by=distil(tau=3), rho=2)", accord.fedavg() + accord.perturb(by=accord.distil(tau=3), rho=2)),
        ("fedavg + perturb(distil, 2, head)", accord.fedavg() + accord.perturb(accord.distil(), 2, "head")),
        ("fedsol(adaptive=False)", accord.fedsol(adaptive=False)),
        ("fedavg + uniform(10)", accord.fedavg() + accord.uniform(10)),
        ("fedavg + finetune(5, lr=None)", accord.fedavg() + accord.finetune(5)),
        ("fedavg + buffers(local)", accord.fedavg() + accord.buffers("local")),
        ("fedavg + sgd(clip=10, on=head)", accord.fedavg() + accord.sgd(clip=10.0, on="head")),
        ("scaffold + fedprox(mu=1)", accord.scaffold() + accord.proximal(1)),
        ("sgd(lr=1)", accord.sgd(lr=1.0)),
        ("constrain", accord.constrain()),
        ("perturb + constrain", accord.Algorithm((accord.perturb(), accord.constrain()))),
    ],
)
def test_reads(text: str, wanted: Any) -> None:
    assert read(text) == wanted
    assert type(read(text)) is type(wanted)


def test_slots_are_filled_and_replaced() -> None:
    algorithm = read("fedavg + sgd(lr=0.1) + uniform(3) + sgd(lr=0.2) + buffers(freeze) + finetune(2)")
    assert algorithm.rule == accord.sgd(lr=0.2)
    assert algorithm.select == accord.uniform(3)
    assert algorithm.buffers.policy == "freeze"
    assert algorithm.personal == accord.finetune(2)


def test_a_steps_piece_is_not_a_select_piece_of_the_same_name() -> None:
    rule = read("sgd(steps=uniform(5, 50))")
    assert (rule.steps.low, rule.steps.high) == (5, 50)
    assert rule.steps.kind == "steps"
    assert read("fedavg + uniform(5)").select.kind == "select"


def test_whole_numbers_stay_whole_and_numbers_become_floats() -> None:
    assert type(read("sgd(epochs=3.0)").epochs) is int
    assert type(read("fedprox(mu=1)").parts[-1].mu) is float
    assert read("fedprox(mu=1)") == read("fedprox(mu=1.0)") == read("fedprox(mu=10e-1)")


def test_order_of_parts_is_kept() -> None:
    assert [p.name for p in read("fedavg + constrain + control").parts] == ["task", "constrain", "control"]
    assert read("fedavg + constrain + control") != read("fedavg + control + constrain")


def test_another_kind_of_registry() -> None:
    assert read("task", "part") == accord.task()
    with pytest.raises(ValueError, match="unknown name 'fedavg'"):
        read("fedavg", "part")


# --- refusing --------------------------------------------------------------------------------------------------------------------------

REFUSED = [
    ("", "cannot read ''"),
    ("   ", "cannot read ''"),
    ("fedpox", r"unknown name 'fedpox' at column 1 of 'fedpox' \(did you mean 'fedprox'\?\)"),
    ("fedavg + constrian", r"unknown name 'constrian' at column 10 of .* \(did you mean 'constrain'\?\)"),
    ("fedavg + zzzzzz", "unknown name 'zzzzzz' at column 10.*write one of"),
    ("fedavg + perturb(by=distill)", r"unknown name 'distill' at column 21.*did you mean 'distil'\?"),
    ("fedsol(by=fedavg)", "unknown name 'fedavg' at column 11"),
    ("fedprox(m=1)", r"fedprox has no argument 'm' at column 9 .*it takes mu \(did you mean 'mu'\?\)"),
    ("fedprox(1, 2)", "fedprox takes 1 arguments, not 2, at column 1"),
    ("fedprox(mu=1, mu=2)", "'mu' is given twice at column 15|repeated"),
    ("fedprox(0.1, mu=2)", "multiple values for argument 'mu'"),
    ("fedavg + uniform", "uniform: missing a required argument: 'count'"),
    ("fedavg + uniform()", "uniform: missing a required argument: 'count'"),
    ("fedprox(mu=-1)", r"fedprox\(mu=...\) is -1; it must be a number at least 0"),
    ("fedprox(mu=nan)", r"fedprox\(mu=...\) is nan"),
    ("fedprox(mu=inf)", r"fedprox\(mu=...\) is inf"),
    ("fedprox(mu=-inf)", "expected a value|-inf"),
    ("fedprox(mu=1e999)", r"fedprox\(mu=...\) is inf"),
    ("fedprox(mu=True)", r"fedprox\(mu=...\) is True"),
    ("fedprox(mu=None)", r"fedprox\(mu=...\) is None"),
    ("fedprox(mu='1')", r"fedprox\(mu=...\) is '1'"),
    ("fedprox(mu=big)", "unknown name 'big'"),
    ("fedprox(mu=[1])", r"fedprox\(mu=...\) is \(1,\)"),
    (f"fedprox(mu=1{'0' * 400})", "fedprox.*is 1000"),
    (f"fedavg + uniform(1{'0' * 400})", "uniform.*is 1000"),
    (f"fedprox(mu=1{'0' * 6000})", "cannot read|is 1000"),
    ("fedavg + uniform(2.5)", r"uniform\(count=...\) is 2.5; it must be a whole number at least 1"),
    ("fedavg + uniform(0)", r"uniform\(count=...\) is 0"),
    ("fedavg + uniform(True)", r"uniform\(count=...\) is True"),
    ("sgd(lr=0)", r"sgd\(lr=...\) is 0; it must be a number above 0"),
    ("sgd(momentum=1)", r"sgd\(momentum=...\) is 1; it must be a number from 0 to"),
    ("sgd(lr_decay=0)", r"sgd\(lr_decay=...\) is 0; it must be a number above 0 to 1"),
    ("sgd(nesterov=1)", r"sgd\(nesterov=...\) is 1; it must be True or False"),
    ("sgd(nesterov=True, momentum=0)", "needs a momentum"),
    ("sgd(on=tail)", r"sgd\(on=...\) is 'tail'; it must be one of all, head or body"),
    ("sgd(steps=uniform(9, 3))", "wrong way round"),
    ("sgd(steps=0)", r"sgd\(steps=...\) is 0"),
    ("control(divisor=plan)", r"it must be one of momentum or plain \(did you mean 'plain'\?\)"),
    ("perturb(by=None)", r"perturb\(by=...\) is None"),
    ("perturb(by=0.5)", r"perturb\(by=...\) is 0.5"),
    ("fedavg + 3", "expected a name, not '3', at column 10"),
    ("fedavg + 'scaffold'", "expected a name"),
    ("3", "expected a name, not '3', at column 1"),
    ("'fedavg'", "expected a name"),
    ("sgd + fedavg", "cannot add 'fedavg' at column 7"),
    ("uniform(3) + uniform(4)", "cannot add"),
    ("fedavg + task", "stands twice"),
    ("scaffold + control", "stands twice"),
    ("fedavg - scaffold", "expected a name"),
    ("fedavg * 2", "expected a name"),
    ("-fedavg", "expected a name"),
    ("fedavg and scaffold", "expected a name"),
    ("fedavg if True else scaffold", "expected a name"),
    ("fedavg.parts", "expected a name, not 'fedavg.parts', at column 1"),
    ("fedavg.__class__", "expected a name"),
    ("fedavg().__class__.__mro__", "expected a name"),
    ("fedavg()()", "expected a name"),
    ("fedavg[0]", "expected a name"),
    ("(lambda: fedavg)()", "expected a name"),
    ("lambda: fedavg", "expected a name"),
    ("fedprox(mu=lambda: 1)", "expected a value, not 'lambda: 1', at column 12"),
    ("fedprox(mu=[x for x in (1,)])", "expected a value"),
    ("fedprox(mu={1: 2})", "expected a value"),
    ("fedprox(mu={1})", "expected a value"),
    ("fedprox(mu=f'{1}')", "expected a value"),
    ("fedprox(mu=b'1')", "expected a value"),
    ("fedprox(mu=1j)", "expected a value"),
    ("fedprox(mu=...)", r"expected a value, not '\.\.\.'"),
    ("fedprox(mu=1+1)", "expected a value"),
    ("fedprox(mu=--1)", "expected a value"),
    ("fedprox(mu=-True)", "expected a value"),
    ("fedprox(mu=not 1)", "expected a value"),
    ("fedprox(mu=1 if 1 else 2)", "expected a value"),
    ("fedprox(mu=(x := 1))", "expected a value"),
    ("fedprox(mu := 1)", "expected a value"),
    ("fedprox(*[1])", "expected a value"),
    ("fedprox(**{'mu': 1})", "fedprox has no argument"),
    ("fedprox(mu=fedprox.mu)", "expected a value"),
    ("fedprox(mu=await x)", "expected a value|cannot read"),
    ("fedprox(mu=(yield))", "expected a value|cannot read"),
    ("[fedavg]", "expected a name"),
    ("fedavg,", "expected a name"),
    ("fedavg, scaffold", "expected a name"),
    ("fedavg;", "cannot read"),
    ("fedavg\nscaffold", "cannot read"),
    ("fedavg # a remark\n + scaffold", "cannot read"),
    ("import os", "cannot read"),
    ("x = fedavg", "cannot read"),
    ("fedavg +", "cannot read"),
    ("fedavg(", "cannot read"),
    ("fedavg)", "cannot read"),
    ("__import__('os').system('echo no')", "expected a name"),
    ("__import__('os')", "unknown name '__import__'"),
    ("eval('1')", "unknown name 'eval'"),
    ("exec", "unknown name 'exec'"),
    ("print()", "unknown name 'print'"),
    ("True", "expected a name"),
    ("None", "expected a name"),
    ("fedavg\0", "cannot read|null"),
    ("\0", "cannot read|null"),
    ("\ud800", "cannot read"),
    ("fedavg + \udfff", "cannot read"),
    ("fеdavg", "unknown name 'fеdavg' at column 1 .*did you mean 'fedavg'"),  # a Cyrillic е
    ("fedavg​", "cannot read"),  # a space without width
    ("“fedavg”", "cannot read"),
    ("fedavg − scaffold", "cannot read"),
    ("(" * 400 + "fedavg" + ")" * 400, "cannot read"),
    ("-" * 15000 + "1", "cannot read"),
    ("fedavg" + "()" * 9000, "expected a name|cannot read"),
    ("+".join(["fedavg"] * 2800), None),
    ("perturb(by=" * 1800 + "task" + ")" * 1800, "cannot read|longer|characters"),
    ("perturb(by=" * 150 + "tusk" + ")" * 150, "unknown name 'tusk'|nested"),
    ("a" * 30_000, "30000 characters long"),
]


@pytest.mark.parametrize(("text", "why"), REFUSED, ids=[repr(t[:32]) for t, _ in REFUSED])
def test_refuses_with_the_reason(text: str, why: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if why is None:
            assert outcome(text) is None or outcome(text)
            return
        with pytest.raises(ValueError, match=re.compile(why, re.DOTALL)) as refused:
            read(text)
    assert type(refused.value) is ValueError
    assert len(str(refused.value)) < 1200
    assert refused.value.__suppress_context__ or refused.value.__context__ is None  # nobody sees a traceback in a traceback


@pytest.mark.parametrize("wrong", [None, 3, 2.0, b"fedavg", ["fedavg"], {"fedavg": 1}, accord.fedavg()])
def test_only_a_text_is_read(wrong: Any) -> None:
    with pytest.raises(ValueError, match="a recipe is a text"):
        read(wrong)


def test_wide_letters_are_the_same_letters_or_none() -> None:
    """Python itself reads such letters as the plain ones; nothing else may come of them."""
    assert outcome("ｆｅｄａｖｇ") in (None, accord.fedavg())


def test_every_argument_of_every_piece_refuses_nonsense() -> None:
    for kind in ("part", "algorithm", "rule", "select", "personal", "buffers", "steps"):
        for entry in entries(kind):
            for name in entry.hints:
                for wrong in (
                    object(),
                    float("nan"),
                    float("inf"),
                    -float("inf"),
                    10**400,
                    -(10**400),
                    "no such word",
                    b"",
                    [object()],
                    {},
                ):
                    with pytest.raises(ValueError, match=re.escape(f"{entry.name}({name}=...)") + "|missing a required argument"):
                        entry.make(**{name: wrong})


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (Positive, [1, 0.5, 1e300], [0, -1, "1", None, True, [1], 1j]),
        (NonNegative, [0, 0.0, 3], [-1e-300, -1, False]),
        (Fraction, [0, 0.5, 1], [-0.1, 1.0001]),
        (Count, [1, 7, 3.0], [0, 0.5, -1, True]),
        (Whole, [0, 1], [-1, 0.5, False]),
        (bool, [True, False], [0, 1, None, "True"]),
        (str, ["", "a"], [1, None, b"a"]),
        (int, [0, -3], [0.5, True, "1"]),
        (float | None, [None, 1], ["x", True]),
        (tuple[Count, ...], [(), (1, 2), [3], 4], [(0,), "x", (1, "x")]),
        (tuple[int, str], [(1, "a")], [(1,), (1, 2), (1, "a", 2)]),
    ],
)
def test_check(hint: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        check(value, hint, "it")
    for value in [*bad, float("nan"), float("inf"), object(), 10**400 if hint is not int else "x"]:
        with pytest.raises(ValueError, match=r"^it is "):
            check(value, hint, "it")


def test_pieces_called_in_python_are_checked_too() -> None:
    with pytest.raises(ValueError, match=r"proximal\(mu=\.\.\.\) is -1"):
        accord.proximal(-1)
    with pytest.raises(ValueError, match="unexpected keyword argument 'nu'"):
        accord.proximal(nu=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="too many positional arguments"):
        accord.fedprox(1, 2)  # type: ignore[call-arg]


def test_a_name_is_given_once() -> None:
    class Task(accord.Part):
        """Another thing of the same name."""

    with pytest.raises(ValueError, match=r"the part name 'task' is taken by accord.parts.task"):
        accord.named(Task)
    assert read("task", "part") == accord.task()


# --- any text at all -------------------------------------------------------------------------------------------------------------------


def outcome(text: str) -> Any:
    """What `read` makes of a text: a piece, or None when it refuses with a plain ValueError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return read(text)
        except ValueError:
            return None


WORDS = st.sampled_from(
    [
        *(name for kind in ("algorithm", "part", "rule", "select", "personal", "buffers", "steps") for name in names(kind)),
        *[
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            ",",
            "=",
            "+",
            "-",
            "*",
            "**",
            ".",
            ":",
            ";",
            ":=",
            "@",
            "#",
            "\\",
            "'",
            '"',
            "lambda",
            "for",
            "in",
            "if",
            "else",
            "not",
            "None",
            "True",
            "False",
            "nan",
            "inf",
            "await",
            "yield",
            "import",
        ],
        *["mu", "rho", "by", "on", "head", "lr", "steps", "f'{", "b'", "__import__", "os", "system", "__class__", "eval", "exec", "open"],
        *["0", "1", "-1", "1e999", "1j", "0x7f", "1_0", "10" * 300, " ", "\0", "é", "\ud800", "print", "'x'"],
    ]
)
ANY = st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=14).map("".join), st.lists(WORDS, max_size=14).map(" ".join))


@pytest.fixture
def no_code(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Anything that runs code leaves a trace here."""
    ran: list[str] = []

    def trace(event: str, args: tuple[Any, ...]) -> None:
        if watching and (event in ("exec", "open", "os.system", "subprocess.Popen", "socket.connect") or event.startswith("import")):
            ran.append(f"{event} {args!r:.80}")

    watching = [True]
    sys.addaudithook(trace)
    for name in ("eval", "exec", "__import__", "open"):
        monkeypatch.setattr(builtins, name, _refusing(name, ran, getattr(builtins, name)))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    yield ran
    watching.clear()


def _refusing(name: str, ran: list[str], real: Any) -> Any:
    def call(*args: Any, **named: Any) -> Any:
        if args and isinstance(args[0], str) and "canary" in args[0]:
            ran.append(name)
        return real(*args, **named)

    return call


@pytest.mark.parametrize(
    "text",
    [
        "__import__('canary')",
        "eval('canary')",
        "fedprox(mu=eval('canary'))",
        "fedprox(mu=__import__('canary'))",
        "fedprox(mu=f'{open(\"canary\")}')",
        "fedprox(mu=[eval('canary') for _ in '1'])",
        "fedprox(mu=(lambda: eval('canary'))())",
        "open('canary')",
        "fedavg(weights=open('canary'))",
        "fedavg(weights=canary)",
        "perturb(by=exec('canary'))",
        "exec('canary') + fedavg",
        "fedavg + exec('canary')",
    ],
)
def test_runs_nothing(text: str, no_code: list[str]) -> None:
    assert outcome(text) is None
    assert no_code == []


@settings(max_examples=400)
@given(ANY)
@example("fedprox(mu=" + "9" * 5000 + ")")
@example("(" * 199 + "fedavg" + ")" * 199)
@example("fedavg" + "+fedavg" * 900)
@example("perturb(" * 300)
@example("-" * 5000 + "fedavg")
@example("fedavg" + ".a" * 5000)
@example("fedprox(mu='" + "x" * 5000 + "')")
@example("\x0cfedavg")
@example("fedavg\\\n")
def test_no_text_does_anything_but_be_read_or_refused(text: str) -> None:
    found = outcome(text)
    if found is not None:
        assert read(repr(found)) == found


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(alphabet="(+-[{.,f1a =)'", min_size=50, max_size=2500))
def test_long_texts_end(text: str) -> None:
    outcome(text)


# --- writing and reading back ----------------------------------------------------------------------------------------------------------

NUMBER = st.floats(0, 1e6, allow_nan=False, allow_subnormal=True)
ABOVE = st.floats(1e-12, 1e6)
ON = st.sampled_from(["all", "head", "body"])
LEAVES = st.one_of(
    st.builds(accord.proximal, mu=NUMBER),
    st.builds(accord.control, divisor=st.sampled_from(["momentum", "plain"])),
    st.builds(accord.distil, beta=NUMBER, tau=ABOVE),
    st.builds(
        accord.constrain,
        center=st.booleans(),
        orthogonal=st.booleans(),
        order=st.sampled_from(["sequential", "joint"]),
        decay=st.sampled_from(["inside", "outside"]),
    ),
)
ADAPTIVE = st.sampled_from(["none", "weight", "drift", "drift-tensor"])
WRAPPED = st.recursive(LEAVES, lambda inner: st.builds(accord.perturb, by=inner, rho=NUMBER, on=ON, adaptive=ADAPTIVE), max_leaves=4)
RULES = st.builds(
    accord.sgd,
    lr=ABOVE,
    momentum=st.floats(0.01, 0.99),
    decay=NUMBER,
    nesterov=st.booleans(),
    epochs=st.integers(1, 99),
    steps=st.one_of(
        st.none(), st.integers(1, 99), st.builds(lambda a, b: read(f"uniform({a}, {a + b})", "steps"), st.integers(1, 9), st.integers(0, 9))
    ),
    batch=st.integers(1, 999),
    drop_last=st.booleans(),
    lr_decay=st.floats(1e-6, 1),
    on=ON,
    clip=st.one_of(st.none(), ABOVE),
)
SLOTS = st.one_of(
    st.builds(accord.uniform, st.integers(1, 10**6)),
    st.just(accord.all()),
    st.builds(accord.finetune, epochs=st.integers(1, 9), on=ON, lr=st.one_of(st.none(), ABOVE)),
    st.just(accord.shared()),
    st.builds(accord.buffers, st.sampled_from(["average", "local", "freeze"])),
)


@settings(max_examples=150)
@given(st.lists(WRAPPED, max_size=4, unique=True), RULES, st.lists(SLOTS, max_size=3), st.sampled_from(["samples", "uniform"]))
def test_every_algorithm_is_read_back_from_its_text(parts: list[Any], rule: Any, slots: list[Any], weights: str) -> None:
    algorithm = accord.fedavg(weights)
    for piece in (*parts, rule, *slots):
        algorithm = algorithm + piece
    text = repr(algorithm)
    assert read(text) == algorithm
    assert repr(read(text)) == text
    assert hash(read(text)) == hash(algorithm)
    assert read(text).parts == algorithm.parts


@given(SPACES, SPACES, SPACES)
def test_spaces_between_do_not_matter(a: str, b: str, c: str) -> None:
    text = f"fedavg{a}+{b}perturb({c}by{a}={b}distil{c}({a}tau{b}={c}3{a}){b},{c}rho{a}={b}2{c}){a}"
    assert read(text) == accord.fedavg() + accord.perturb(by=accord.distil(tau=3), rho=2)


def test_snake() -> None:
    assert [snake(n) for n in ("SGD", "PowerOfChoice", "Task", "FedAvgM")] == ["sgd", "power_of_choice", "task", "fed_avg_m"]
