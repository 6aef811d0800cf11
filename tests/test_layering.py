"""Which part of the package may import which, read from the sources; and that importing it stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trajspec

ROOT = Path(trajspec.__file__).parent
#: What the files of a part may import beside the standard library and their own part; parts without a line may
#: import everything.
ALLOWED = {
    "ir": {"numpy"},
    "policies": {"numpy", "trajspec", "trajspec.ir"},
    "passes": {"numpy", "sympy", "trajspec.ir"},
    "exact": {"numpy", "hypothesis", "trajspec.ir", "trajspec.passes"},
    "runtime": {
        "numpy", "torch", "transformers", "triton", "safetensors", "tokenizers", "huggingface_hub", "antiberty",
        "jinja2",
        "trajspec.ir",
    },
    "completion": {"torch", "transformers", "trajspec.ir", "trajspec.runtime"},
    "benchmark": {"torch", "trajspec.ir", "trajspec.decoding"},
    "cli": {
        "torch", "trajspec", "trajspec.ir", "trajspec.passes", "trajspec.policies", "trajspec.exact",
        "trajspec.benchmark", "trajspec.completion", "trajspec.options", "trajspec.speculation",
        "trajspec.decoding", "trajspec.jobs", "trajspec.conformance",
    },
}  # fmt: skip


def imported(file: Path, package: str) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that `file`, a module in `package`, imports anywhere in it."""
    for item in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(item, ast.Import):
            yield from ((item.lineno, alias.name) for alias in item.names)
        elif isinstance(item, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - item.level + 1] if item.level else []
            base = ".".join([*above, *([item.module] if item.module else [])])
            # `from . import ir` and `from trajspec import ir` import a part as well.
            whole = base == "trajspec"
            yield from ((item.lineno, f"{base}.{alias.name}" if whole else base) for alias in item.names)


def forbidden(root: Path) -> list[str]:
    """Every import in the package at `root` that its part may not make."""
    parts = {path.name for path in root.iterdir() if path.is_dir() or path.suffix == ".py"}
    found = []
    for file in sorted(root.rglob("*.py")):
        inside = file.relative_to(root)
        part = inside.parts[0] if len(inside.parts) > 1 else ""
        allowed = ALLOWED.get(part)
        if allowed is None:
            continue
        package = ".".join(["trajspec", *inside.parts[:-1]])
        for line, name in imported(file, package):
            top, *rest = name.split(".")
            if top in sys.stdlib_module_names or top == "__future__":
                continue
            if top == "trajspec" and rest:
                # A public name of the package itself is not a part.
                top = f"trajspec.{rest[0]}" if {rest[0], f"{rest[0]}.py"} & parts else "trajspec"
            if top not in allowed | {f"trajspec.{part}"}:
                found.append(f"{inside}:{line}: {part} may not import {name}")
    return found


def test_no_forbidden_import():
    assert forbidden(ROOT) == []


def test_every_part_is_ruled():
    parts = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert parts <= set(ALLOWED) and {"ir", "policies", "exact", "runtime"} <= parts
    assert sum(1 for _ in ROOT.rglob("ir/**/*.py")) > 10


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("ir/op.py", "import torch\n", 1),
        ("ir/op.py", "def f():\n    from torch.nn import functional\n", 2),
        ("ir/opset/read.py", "from ...runtime import noise\n", 1),
        ("ir/opset/read.py", "from ... import policies\n", 1),
        ("ir/op.py", "from trajspec import runtime\n", 1),
        ("ir/op.py", "import trajspec.passes.rules\n", 1),
        ("ir/op.py", "import sympy\n", 1),
        ("policies/mine.py", "from ..runtime import noise\n", 1),
        ("policies/mine.py", "import torch\n", 1),
        ("passes/rules.py", "from ..runtime.noise import uniform\n", 1),
        ("passes/rules.py", "from ..exact import check\n", 1),
        ("runtime/step.py", "from ..passes import rules\n", 1),
        ("runtime/models/text.py", "from ...passes import rules\n", 1),
        ("runtime/step.py", "if True:\n    from .. import passes\n", 2),
        ("runtime/step.py", "from ..decode import decode\n", 1),
        ("exact/check.py", "import torch\n", 1),
        ("exact/check.py", "from ..runtime import noise\n", 1),
    ],
)
def test_the_walk_finds_forbidden_imports(tmp_path, file, text, line):
    for part in ALLOWED:
        (tmp_path / part).mkdir()
    (tmp_path / "decode.py").write_text("from .passes import rules\nfrom .runtime import step\nimport torch\n")
    good = {
        "ir": "import ast\nimport numpy as np\nfrom . import kinds\nfrom .op import op\n",
        "policies": "import trajspec as ts\nfrom ..ir import policy\nfrom trajspec import op\n",
        "runtime": "import torch\nfrom ..ir.canvas import Canvas\nfrom .step import step\n",
    }
    for part, lines in good.items():
        (tmp_path / part / "good.py").write_text(lines)
    assert forbidden(tmp_path) == []
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    (found,) = forbidden(tmp_path)
    assert found.startswith(f"{file}:{line}: {file.split('/')[0]} may not import ")


HEAVY = ("torch", "transformers", "sympy", "hypothesis", "safetensors", "triton")


@pytest.mark.parametrize("module", ["trajspec", "trajspec.ir", "trajspec.policies"])
def test_importing_is_light(module):
    assert loaded(f"import {module}; {module}.__doc__") == []
    assert loaded("import trajspec; trajspec.policies.wino.plan(); dir(trajspec); trajspec.window") == []


def test_the_check_of_importing_sees_torch():
    assert "torch" in loaded("import torch")


def loaded(code: str) -> list[str]:
    """Which heavy packages a fresh interpreter has loaded after `code`."""
    code += f"; import sys; print(*[name for name in {HEAVY} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    return ran.stdout.split()
