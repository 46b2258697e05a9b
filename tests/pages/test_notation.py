"""How a page says what is to be run, and what of an output counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.live.stage import FORKED_PLIANT, stage
from tests.pages.blocks import Page, PageError, read_page
from tests.pages.shown import is_shown
from tests.pages.walk import Walk, forked_words


def _page(directory: Path, text: str, directives: str = "") -> Page:
    path = directory / "page.md"
    path.write_text(text)
    (directory / "page.txt").write_text(directives)
    return read_page(path, directory / "page.txt")


def _walk(directory: Path, text: str, directives: str = "") -> None:
    page = _page(directory, text, directives)
    with stage(forked=False) as fresh:
        Walk(page, directory, fresh, fresh, is_soak=True).all_of_it()


def test_a_word_has_directives_and_directives_have_a_block(tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"page\.md:2: no directives are called \[stop\]"):
        _page(tmp_path, "<!-- stop -->\n```sh\npliant stop\n```\n")
    with pytest.raises(PageError, match=r"page\.md: no block is called stop"):
        _page(tmp_path, "```sh\npliant stop\n```\n", "[stop]\nsoak\n")


def test_a_word_is_of_the_block_that_follows_and_substitutions_must_fit(tmp_path: Path) -> None:
    text = "  <!-- short -->\n  ```sh\n  echo 300\n  ```\n\n```sh\necho 300\n```\n"
    directives = '[short]\nfor "300" take "3"\n'
    first, second = _page(tmp_path, text, directives).blocks

    assert (first.text, second.text) == ("echo 3\n", "echo 300\n")

    (block, _) = _page(tmp_path, text.replace("  echo 300", "x"), directives).blocks
    with pytest.raises(PageError, match="is not in the block"):
        assert block.text


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("step 3  r1 lost", "step 3  r1 lost", True),
        ("step 3  r1 lost", "step 4  r1 lost", False),
        ("15:36:50  pause 0.861 s", "02:01:09  pause 12 s", True),
        ("devices 4, 5 are yours", "devices 0, 1 are yours", False),
        ("claim-25296 asks for 2", "claim-7 asks for 2", True),
        (
            "│ gpt  1:28 min  has 2 of 4 and asks       │\n│                      for 1 more │\nb",
            "│ gpt  11 s  has 2 of 4      │\n│                     and asks for 1 more │\nb",
            True,
        ),
        (
            "│ gpt  1:28 min  has 2 │\n│                      for 1 more │",
            "│ gpt  11 s  has 2 for 2     │\n│                     more │",
            False,
        ),
        ("a\n...", "a\n                        static\njobs 48", True),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...", "b\nc", False),
        ("gets ... and has 4", "gets devices 1, 2 and has 4", True),
        ("a\nb", "a", False),
        ("a", "a\nb", False),
    ],
)
def test_what_is_shown_must_be_printed_except_for_what_always_varies(
    shown: str, printed: str, same: bool
) -> None:
    assert is_shown(shown.splitlines(), printed.splitlines()) is same


def test_a_page_whose_command_fails_fails_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:1.*\n.*exit code 2, not 0\n.*no job is"):
        _walk(tmp_path, "```sh\npliant status\n```\n")


@pytest.mark.parametrize("code", ["", "exits 3\n"])
def test_what_goes_on_must_end_as_the_page_says(tmp_path: Path, code: str) -> None:
    goes_on = "<!-- on -->\n```sh\necho $$ > pid; echo begun; read word < end; exit 4\n```\n"
    ends = "```sh\necho > end\nwhile [ -e /proc/$(cat pid)/exe ]; do sleep 0.1; done\n```\n"
    directives = f"[on]\n$ mkfifo end\n{code}goes on at once\n"

    with pytest.raises(AssertionError, match=r"page\.md:\d+: echo .*\n.*exit code 4, not "):
        _walk(tmp_path, goes_on + ends, directives)


def test_a_page_that_shows_something_else_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="shown:\ndays"):
        _walk(tmp_path, "```console\n$ echo hours\ndays\n```\n")


def test_what_is_not_run_leaves_no_trace_and_the_rest_is_run(tmp_path: Path) -> None:
    _walk(
        tmp_path,
        "<!-- a -->\n```sh\ntouch a\ntouch b\n```\n<!-- c -->\n```sh\ntouch c\n```\n"
        "<!-- d -->\n```sh\nfalse   # never true\n```\n",
        "[a]\nnot run: touch a: it needs root\n\n[c]\nnot run: needs root\n\n"
        "[d]\n$ touch d\nexits 1\n",
    )

    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["b", "d", "examples"]


def test_lines_before_a_python_block_may_open_what_it_stands_in(tmp_path: Path) -> None:
    _walk(
        tmp_path,
        "<!-- each -->\n```python\nprint(word, file=open('said', 'a'))\n```\n"
        "- in a list\n\n"
        "  <!-- said -->\n  ```python\n  for word in 'cd':\n      print(word, file=said)\n  ```\n"
        "<!-- none -->\n```python\nprint('e', file=open('said', 'a'))\n```\n",
        "[each]\npython:\n    for word in ['a', 'b']:\n        if word != 'a':\n\n"
        "[said]\npython:\n    with open('said', 'a') as said:\n\n[none]\npython:\n",
    )

    assert (tmp_path / "work" / "said").read_text().split() == ["b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("command", "forked"),
    [
        ("pliant status   # steps; and > what", [FORKED_PLIANT, "status"]),
        (
            "pliant pool cordon 1 --reason 'a fan'",
            [FORKED_PLIANT, "pool", "cordon", "1", "--reason", "a fan"],
        ),
        ("python train.py --steps 3", ["train.py", "--steps", "3"]),
        ("pliant logs | head", None),
        ("pliant status > said; true", None),
        ("pliant claim 2 -- bash -c 'echo $PLIANT_DEVICES'", None),
        ("pliant audit runs/*", None),
        ("PLIANT_MAX=2 pliant run train.py", None),
        ("python -c pass", None),
        ("cp a b", None),
    ],
)
def test_a_quick_walk_forks_what_bash_is_not_needed_for(
    command: str, forked: list[object] | None
) -> None:
    assert forked_words(command) == (forked and [str(word) for word in forked])
