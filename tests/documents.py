"""The code blocks of Markdown pages, and how the tests run them: shell lines through the installed command, Python in order, in one folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^(?P<indent> *)```(?P<head>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
SMALL = {"run": ["--rounds", "2"], "compare": ["--rounds", "2", "--seeds", "2"]}  # what later flags make of a long run


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its attributes and its text."""

    page: str
    line: int
    language: str
    attributes: dict[str, str]
    text: str


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


def play(page: Path, folder: Path) -> None:
    """Run every block of a page in one folder, and fail with the first that does not do what the page says."""
    said = ""
    for block in blocks(page):
        if "skip" in block.attributes:
            continue
        if "title" in block.attributes:
            (folder / block.attributes["title"]).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            said = started([sys.executable, "-c", block.text], folder, 0, block)
        elif block.language == "sh":
            for words, code in commands(block):
                said = on_the_shell(words, folder, code, block)
        elif block.language == "text" and block.text.startswith("accord: "):
            assert block.text.strip() in said, f"{block.page}, line {block.line}: not what was said, which is {said!r}"


def on_the_shell(words: list[str], folder: Path, code: int, block: Block) -> str:
    """One command; of `make`, only that there is such a target."""
    if words[0] == "make":
        return started(["make", "--dry-run", *words[1:]], ROOT, code, block)
    assert words[0] == "accord", f"{block.page}, line {block.line}: the tests run accord and make, not {words[0]}"
    return started([str(Path(sys.executable).with_name("accord")), *words[1:]], folder, code, block)


def started(words: list[str], folder: Path, code: int, block: Block) -> str:
    """What a command says, when it ends as it should."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    said = ended.stdout + ended.stderr
    assert ended.returncode == code, f"{block.page}, line {block.line}: {shlex.join(words)} ended with {ended.returncode}\n{said}"
    assert "Traceback" not in said, f"{block.page}, line {block.line}: {shlex.join(words)}\n{said}"
    return said
