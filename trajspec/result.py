"""What decoding gives back: text, tokens, cost and provenance of every row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

KINDS_OF_CALLS = ("prefill", "refresh", "step", "verify", "store", "further", "idle")


@dataclass
class Row:
    """One decoded row. Costs are those of its single run: a batch changes none of them but padding in `positions`."""

    text: str | None  # None for a model without text
    token_ids: list[int]  # the generated part; for infilling the whole row without special tokens
    prompt_tokens: int
    answer_tokens: int  # without EOS and what follows it
    answer_tokens_with_eos: int
    finish_reason: str  # eos, stop or length
    calls: int
    calls_by_kind: dict[str, int]
    rows: int  # sequences in its calls
    positions: int  # query tokens in its calls
    tokens_per_call: float
    drafted: int
    accepted: int
    base_steps: int
    policy: str
    cache: str
    drafter: str
    nodes: int
    certificate: dict[str, Any]
    drift: dict[str, Any]
    seconds: float  # of the whole batch, without compiling
    compile_seconds: float
    manifest: dict[str, Any]
    path: list[list[tuple[int, int]]] = field(default_factory=list, repr=False)  # (position, token) each step wrote
    drafter_calls: int = 0  # of a second model that drafts (an autoregressive target's drafter)
    drafter_rows: int = 0
    drafter_positions: int = 0
    accepted_lengths: list[int] = field(default_factory=list)  # drafted tokens that each of its drafts got accepted

    def as_dict(self) -> dict[str, Any]:
        """Everything but the path, ready for JSON."""
        content = asdict(self)
        del content["path"]
        return content


@dataclass
class Totals:
    """What the batch as a whole asked of the model."""

    calls: int
    rows: int
    positions: int
    answer_tokens: int
    seconds: float


@dataclass
class Result(Sequence[Row]):
    """The rows in the order of the prompts (all samples of a prompt together), and the batch's totals."""

    rows: list[Row]
    totals: Totals
    sequences: Tensor = field(repr=False)  # int64 [rows, prompt + generated], prompts padded on the left

    @property
    def text(self) -> str | None:
        """The text of the only row. Raises TrajspecError when there are several; see `texts`."""
        if len(self.rows) != 1:
            from .ir import TrajspecError

            raise TrajspecError(f"there are {len(self.rows)} rows; use result.texts or result[i].text")
        return self.rows[0].text

    @property
    def texts(self) -> list[str | None]:
        """The text of every row."""
        return [row.text for row in self.rows]

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)
