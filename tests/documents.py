"""The code blocks of a Markdown page, run in order in the present folder, in a process of their own: `python documents.py PAGE`."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(r"^(?P<indent> *)```(?P<head>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
SMALL = {"run": ["--rounds", "2"], "compare": ["--rounds", "2", "--seeds", "2", "--workers", "1"]}  # later flags count


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its attributes and its text."""

    page: str
    line: int
    language: str
    attributes: dict[str, str]
    text: str

    def demand(self, holds: bool, why: str) -> None:
        """Stop with the place of this block unless something holds."""
        if not holds:
            raise SystemExit(f"{self.page}, line {self.line}: {why}")


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text, found = page.read_text(encoding="utf-8"), []
    for match in FENCE.finditer(text):
        language, *rest = shlex.split(match["head"]) or [""]
        attributes = dict(word.partition("=")[::2] for word in rest)
        body = re.sub(f"^{match['indent']}", "", match["body"], flags=re.MULTILINE)
        found.append(Block(page.name, text.count("\n", 0, match.start()) + 1, language, attributes, body))
    return found


def commands(block: Block) -> Iterator[tuple[list[str], int]]:
    """The commands of a shell block, made small, and the exit code that a comment announces."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        code = re.search(r"# exit code (\d+)", line)
        if words:
            yield words + (SMALL.get(words[1], []) if words[0] == "accord" else []), int(code[1]) if code else 0


def play(page: Path) -> None:
    """Run every block of a page, and stop at the first that does not do what the page says."""
    said = ""
    for block in blocks(page):
        if "skip" in block.attributes:
            continue
        if "title" in block.attributes:
            Path(block.attributes["title"]).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            sys.modules["page"] = module = ModuleType("page")
            exec(compile(block.text, f"{block.page}:{block.line}", "exec"), module.__dict__)
        elif block.language == "sh":
            for words, code in commands(block):
                said = typed(words, code, block)
        elif block.language == "text" and block.text.startswith("accord: "):
            block.demand(block.text.strip() in said, f"not what was said, which is {said!r}")


def typed(words: list[str], code: int, block: Block) -> str:
    """What a command says: `accord` by its installed entry point; of `make`, only that there is such a target."""
    if words[0] == "make":
        ended = subprocess.run(["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        block.demand(ended.returncode == code, f"{shlex.join(words)}\n{ended.stderr}")
        return ended.stdout
    block.demand(words[0] == "accord", f"the tests run accord and make, not {words[0]}")
    (entry,) = entry_points(group="console_scripts", name="accord")
    out, found = io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(out):
        try:
            entry.load()(words[1:])
        except SystemExit as end:
            found = end.code or 0
    block.demand(found == code, f"{shlex.join(words)} ended with {found}\n{out.getvalue()}")
    return out.getvalue()


if __name__ == "__main__":
    play(Path(sys.argv[1]))
