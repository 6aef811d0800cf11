"""Problems have exact answers, and no problem is in both splits."""

import ast

import pytest

from tools import tiny_data, tokenizer
from tools.tiny_data import Item, is_correct, item, same_program, split_of

TASKS = sorted(tiny_data.TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_splits_never_share_a_prompt(task):
    prompts = {split: {item(task, split, index).prompt for index in range(400)} for split in tiny_data.SPLITS}
    assert not prompts["train"] & prompts["test"]
    assert all(split_of(prompt) == split for split in prompts for prompt in prompts[split])


@pytest.mark.parametrize("task", TASKS)
def test_an_item_depends_on_task_split_and_index_alone(task):
    assert [item(task, "train", i) for i in range(20)] == [item(task, "train", i) for i in range(20)]
    assert len({item(task, "train", i).prompt for i in range(20)}) > 15


@pytest.mark.parametrize("task", TASKS)
def test_checker_accepts_the_reference_and_nothing_near_it(task):
    for index in range(200):
        problem = item(task, "test", index)
        assert is_correct(problem, problem.completion)
        assert not is_correct(problem, "")
        assert not is_correct(problem, problem.completion[:-1])
        for place, letter in enumerate(problem.completion):
            if letter.isdigit() and letter != "1":  # a digit changed anywhere
                other = problem.completion[:place] + "1" + problem.completion[place + 1:]
                assert not is_correct(problem, other), (problem.prompt, other)


def test_arithmetic_holds_line_by_line():
    for index in range(300):
        problem = item("arith", "train", index)
        *steps, last = problem.completion.split(";")
        have = int(problem.prompt.split()[2])
        for step in steps:
            left, sign, change, _, after = step.split()
            assert int(left) == have and 0 <= int(after) <= 99
            have = have + int(change) if sign == "+" else have - int(change)
            assert int(after) == have
        assert last.split()[-1] == f"{have:02d}" and f"{have:02d}" in last.split("####")[0]


def test_sorted_lists_are_sorted():
    for index in range(300):
        problem = item("sort", "train", index)
        numbers = [int(word[1:]) for word in problem.prompt.split()[1:]]
        up, down = problem.completion.removeprefix(" up ").split(" down ")
        assert [int(word[1:]) for word in up.split()] == sorted(numbers) and 3 <= len(numbers) <= 5
        assert [int(word[1:]) for word in down.split()] == sorted(numbers, reverse=True)


def by_hand(prompt: str, xs: list[int]) -> object:
    """What the description of a function says, computed without its source."""
    fold, words = prompt.split(": ")[1].split(" of ")
    chosen, change = words.split(", ")
    test, *bound = chosen.split()
    word, *amount = change.split()
    keep = {"all": lambda x: True, "even": lambda x: x % 2 == 0, "odd": lambda x: x % 2 == 1,
            "over": lambda x: x > int(bound[0]), "under": lambda x: x < int(bound[0])}[test]
    value = {"as": lambda x: x, "plus": lambda x: x + int(amount[0]), "minus": lambda x: x - int(amount[0]),
             "times": lambda x: x * int(amount[0]), "squared": lambda x: x * x}[word]
    values = [value(x) for x in xs if keep(x)]
    product = 1
    for v in values:
        product *= v
    return {"sum": sum(values), "count": len(values), "product": product, "list": values}[fold]


def test_reference_functions_do_what_their_description_says():
    xs = [3, 8, 15, 22, 41, 60, 77, 98]
    for index in range(300):
        problem = item("code", "train", index)
        scope: dict[str, object] = {}
        exec(problem.completion, scope)  # the generator's own text, not a model's
        assert scope[problem.prompt.split(":")[0]](xs) == by_hand(problem.prompt, xs), problem


def test_programs_compare_up_to_names_of_variables_only():
    source = "def f(xs):\n    s = 0\n    for x in xs:\n        s += x\n    return s"
    assert same_program(source, source.replace("xs", "items").replace("s = 0", "s  =  0"))
    assert not same_program(source, source.replace("def f", "def g"))
    assert not same_program(source, source.replace("s += x", "s -= x"))
    assert not same_program(source, source.replace("s += x", "s += s"))
    assert not same_program(source, source + " +")
    assert not same_program(source, "x" * 10 + "(" * 500)


def test_checker_runs_nothing():
    problem = Item("code", "f", "def f(xs):\n    return xs")
    assert not is_correct(problem, "raise SystemExit")
    assert isinstance(ast.parse(problem.completion), ast.Module)


def test_drills_keep_out_of_the_test_split():
    drawn = [item("sort_short", "train", index).prompt for index in range(400)]
    assert all(split_of(prompt) == "train" for prompt in drawn)
    with pytest.raises(ValueError, match="'facts' is a drill"):
        item("facts", "test", 0)


@pytest.mark.parametrize("drill", ["facts", "facts_carry"])
def test_facts_are_true_and_ask_for_results_only(drill):
    for index in range(100):
        problem = item(drill, "train", index)
        shown = [problem.completion[start:end] for start, end in tiny_data.asked(problem)]
        assert [int(text) for text in shown] == [
            int(a) + int(b) if sign == "+" else int(a) - int(b)
            for a, sign, b in (line.split()[:3] for line in problem.completion.split(";"))]


def test_amounts_are_asked_for_from_one_step_to_the_end():
    firsts = set()
    for index in range(100):
        problem = item("arith_amounts", "train", index)
        spans = tiny_data.asked(problem)
        steps = problem.completion.count("=")
        firsts.add((steps, step := problem.completion[:spans[0][0]].count("=")))
        assert len(spans) == 2 * (steps - step + 1) + 1  # each result and its copies: next operand, told, answer
        assert all(problem.completion[start:end].strip().isdigit() for start, end in spans)
    assert firsts == {(steps, step) for steps in (1, 2, 3) for step in range(1, steps + 1)}


def carries(left: int, sign: str, right: int) -> bool:
    return left % 10 + right % 10 > 9 if sign == "+" else left % 10 < right % 10


def test_carry_is_kept_out_and_let_in():
    found = {name: [carries(int(a), sign, int(b)) for index in range(100)
                    for a, sign, b in (line.split()[:3] for line in item(name, "train", index).completion.split(";"))
                    if sign in "+-"] for name in ("arith", "arith_carry", "facts", "facts_carry")}
    assert [any(values) for values in found.values()] == [False, True, False, True]


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="unknown task 'poetry'"):
        item("poetry", "train", 0)
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        item("sort", "dev", 0)


@pytest.fixture(scope="module")
def tok():
    return tokenizer.build()


@pytest.mark.parametrize("task", TASKS)
def test_tasks_are_written_in_words_and_digits(tok, task):
    for index in range(100):
        problem = item(task, "test", index)
        for text in (problem.prompt, problem.completion):
            encoded = tok.encode(text)
            assert tok.decode(encoded.ids) == text
            digits = sum(letter.isdigit() for letter in text)
            assert sum(token[-1].isdigit() for token in encoded.tokens) == (digits / 2 if task == "sort" else digits)
    assert len(tok.encode(" has 07 31 down").ids) == 6 and len(tok.encode(" up $07 $31 down").ids) == 4


@pytest.mark.parametrize(
    "text", ["", " ", "héllo  wörld\t\n\n x", "你好 🙂", "a1b22 c", "x $4567 $5 $123", "<|pad", "\r\n\x00"])
def test_every_string_comes_back(tok, text):
    assert tok.decode(tok.encode(text).ids, skip_special_tokens=False) == text
