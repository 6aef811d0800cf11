"""One call of decode, checked and laid out before any work: the model, the plan, and a canvas for every row."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

import torch

from .ir import Canvas, Plan, Policy, TrajspecError, canvas, parse
from .ir.errors import OptionError
from .ir.interpret import bind_inputs
from .ir.nodes import Node
from .ir.noise import row_seed
from .ir.opset.read import block_numbers
from .options import canonical, choose_policy, choose_view, flag, settle
from .policies import get_policy
from .prompts import Prompt, items_of, seeds_of, spoken
from .runtime.denoiser import Bare, as_model
from .runtime.further import with_further
from .runtime.models import Model
from .runtime.packing import check_layout, quickest
from .speculation import Speculation, choose

DEFAULT_LENGTH = 128
_KEPT = 64
_LAYOUTS: weakref.WeakKeyDictionary[Any, dict[Any, str]] = weakref.WeakKeyDictionary()
_PLANS: dict[tuple[Any, ...], Plan] = {}


@dataclass(frozen=True)
class RowPlan:
    """One row to decode. `prompt_length` counts the positions before the answer, 0 for infilling."""

    prompt: Prompt
    canvas: Canvas
    prompt_length: int
    seed: int
    inputs: Mapping[str, Any]
    allowed: Mapping[int, Any] | None


@dataclass(frozen=True)
class Job:
    """Everything decoding needs to know.

    `plan` is the one that runs, its `base` the policy's own; `eos` ends rows of a continuation, `unused` was given and
    has no effect. `compile`: steps are compiled.
    """

    model: Any  # Model or Bare
    policy: str
    plan: Plan
    settings: dict[str, Any]
    unused: dict[str, Any]
    infill: bool
    gen_length: int
    eos: tuple[int, ...]
    stop: tuple[str, ...]
    keep_path: bool
    view: str = "full"
    compile: bool = False
    speculation: Speculation = field(default_factory=Speculation)
    rows: list[RowPlan] = field(default_factory=list)

    @property
    def base(self) -> Plan:
        """The plan whose trajectory is walked."""
        return self.plan.base or self.plan


def prepare(model: Any, prompts: Any, options: Mapping[str, Any]) -> Job:
    """The job that `decode(model, prompts, **options)` means; options are those of `decode`.

    Raises TrajspecError, or TypeError for an option nobody declares, before any model call.
    """
    policy = options.get("policy")
    declared = frozenset(policy.settings) if isinstance(policy, Policy) else frozenset()
    rest = canonical(options, declared)
    pop = rest.pop
    loaded = as_model(model, pop("dtype", None), _device(pop("device", None)))
    mask_id = pop("mask_id", None)
    if mask_id is not None and mask_id != loaded.mask_id:
        raise TrajspecError(f"mask_id={mask_id}, but the mask id of {loaded.name} is {loaded.mask_id}")
    length = pop("gen_length", None)
    infill = flag(rest, "infill", False) or (loaded.kind == "infill" and length is None)
    open_length = getattr(loaded, "canvas", None)
    default = 0 if infill else open_length or DEFAULT_LENGTH
    gen_length = default if length is None else _whole("gen_length", length, least=0)
    stop = _stop_strings(pop("stop", None), loaded, infill)
    given = rest.get("eos_id") if "eos_id" in declared else pop("eos_id", None)
    eos = loaded.eos_ids if given is None else _ids(given, loaded)
    ends = () if flag(rest, "ignore_eos", False) or infill else eos
    compiles = flag(rest, "compile", False)
    keep_path, samples = (
        flag(rest, "keep_path", True),
        _whole("num_return_sequences", pop("num_return_sequences", 1), 1),
    )
    seed, seeds = pop("seed", None), pop("seeds", None)
    allowed, inputs, attention = pop("allowed", None), pop("inputs", None), pop("attention_mask", None)
    models = pop("models", None)
    view = choose_view(rest)
    if rest.get("policy") is None and open_length is not None:
        rest["policy"] = getattr(loaded, "policy", None)
        rest.setdefault("block_length", open_length)
    speculation = choose(rest, declared, view not in (None, "full"))
    name, base, settings, unused = _plan(rest, infill, eos, view)
    loaded = with_further(loaded, models, base.models, name)
    if speculation.auto and not speculation.fits(base):
        speculation = Speculation()  # what cannot be speculated is a case of what does not pay
    plan = speculation.apply(base)
    nodes = list((plan.base or plan).nodes())
    view = next((node.attributes["view"] for node in nodes if node.op.name == "forward_cached"), view)
    check_layout(speculation.packing)
    if speculation.packing != "rows" and (view == "full" or isinstance(loaded, Bare)):
        what = "the full view keeps nothing" if view == "full" else f"{loaded.name} keeps none"
        raise TrajspecError(
            f"packing={speculation.packing!r} is about how states share kept keys and values, and {what}; leave it out"
        )
    if view != "full" and not loaded.supports_cache:
        raise TrajspecError(f"cache={view!r}: {loaded.name} cannot work on kept keys; decode with cache='full'")
    if getattr(getattr(loaded, "denoise", None), "shifted", False) and any(n.op.name == "twins" for n in nodes):
        # A twin's logits are those of the entry before it, and that one sees the token the twin is to be blind to.
        raise TrajspecError(
            f"policy {name} asks for twins, and {loaded.name} predicts an entry from the one before it, which sees the "
            "true token: the second look would confirm everything. Take a policy without twins (not WINO), or another "
            "model"
        )
    _check_soft(loaded, name, nodes, gen_length, infill, compiles)
    items = [spoken(loaded, item) for item in items_of(prompts, attention)]
    job = Job(
        loaded, name, plan, settings, unused, infill, gen_length, ends, stop, keep_path, view, compiles, speculation
    )
    parts = zip(
        items, seeds_of(seed, seeds, len(items)), _spread("allowed", allowed, len(items)),
        _spread("inputs", inputs, len(items)), strict=True,
    )  # fmt: skip
    for item, own, table, given_inputs in parts:
        for sample in range(samples):
            job.rows.append(_row(job, item, row_seed(own, sample), table, given_inputs or {}))
    for row in job.rows:
        bind_inputs(plan, row.canvas, dict(row.inputs))  # names only; shapes are looked at with the batch
    _check_steps(job)
    return job if speculation.packing == "rows" else _laid_out(job)


def _laid_out(job: Job) -> Job:
    """The job with packed calls laid out as it asks; `auto`: as is quickest here, which is measured once."""
    layout = job.speculation.packing
    if layout == "auto":
        length = max(len(row.canvas.tokens) for row in job.rows)
        width = min(job.base.block_length or length, length)
        key = (length, width, job.speculation.nodes, torch.get_num_threads())
        known = _LAYOUTS.setdefault(job.model.network, {})
        if key not in known:
            known[key] = quickest(job.model, length, width, job.speculation.nodes)[0]
        layout = known[key]
    model = replace(job.model, cache=job.model.cache.laid_out(layout))
    return replace(job, model=model, speculation=replace(job.speculation, packing=layout))


def _whole(name: str, given: Any, least: int) -> int:
    if isinstance(given, bool) or not isinstance(given, Integral) or given < least:
        raise TrajspecError(f"{name} is {given!r}, expected a whole number from {least} up")
    return int(given)


def _ids(given: Any, model: Model | Bare) -> tuple[int, ...]:
    try:
        if isinstance(given, (bool, bytes)):
            raise TypeError
        ids = tuple(operator.index(token) for token in ((given,) if isinstance(given, Integral) else given))
    except TypeError:
        raise TrajspecError(f"eos_id is {given!r:.80}, expected a token id or a list of them") from None
    for token in ids:
        if not 0 <= token < model.vocab_size:
            raise TrajspecError(
                f"eos_id has {token}, and the ids of {model.name} are 0 to {model.vocab_size - 1}; give ids of its "
                "vocabulary, or ignore_eos=True to end no row"
            )
    return ids


def _device(given: Any) -> Any:
    if given is None:
        return None
    import torch

    try:
        return torch.device(given)
    except (RuntimeError, TypeError):
        raise TrajspecError(
            f"device is {given!r:.80}, expected the name of a device such as 'cpu' or 'cuda:0'"
        ) from None


def _stop_strings(given: Any, model: Model | Bare, infill: bool) -> tuple[str, ...]:
    if given is not None and not isinstance(given, (str, Sequence)):
        raise TrajspecError(f"stop is {given!r:.80}, expected a text or a list of texts")
    stop = (given,) if isinstance(given, str) else tuple(given or ())
    for text in stop:
        if not isinstance(text, str) or not text:
            raise TrajspecError(f"stop is {given!r}, expected texts that are not empty; ids go to eos_id=")
    if stop and model.codec is None:
        raise TrajspecError("stop strings need a model with text; a bare denoiser takes eos_id=")
    if stop and infill:
        raise TrajspecError("stop strings end a continuation, and infilling has none; give gen_length= to continue")
    return stop


def _plan(
    options: dict[str, Any], infill: bool, eos: tuple[int, ...], view: str
) -> tuple[str, Plan, dict[str, Any], dict[str, Any]]:
    """Name, plan, parameters and unused options, from what is left of the options."""
    chosen, compat = options.pop("policy", None), options.pop("compat", None)
    if isinstance(chosen, Plan) or (isinstance(chosen, str) and "\n" in chosen):
        plan = chosen if isinstance(chosen, Plan) else parse(chosen)
        given = [*options, *(["compat"] if compat else []), *(["cache"] if view != "full" else [])]
        if given:
            raise OptionError(f"a plan takes no options, got {', '.join(map(repr, given))}; edit its text instead")
        return plan.name, plan, {}, {}
    if compat is not None and not isinstance(compat, str):
        raise TrajspecError(f"compat is {compat!r:.80}, expected the name of a quirk that was recorded")
    if isinstance(chosen, Policy):
        if compat:
            raise TrajspecError(f"compat={compat!r} goes with the name of a policy, not with a Policy")
        policy = chosen
    elif chosen is None or isinstance(chosen, str):
        policy = get_policy(choose_policy(chosen, options), compat)
        if infill and "block_length" in policy.settings:
            # Infilling has no blocks unless they are asked for.
            options.setdefault("block_length", None)
    else:
        raise TrajspecError(f"policy is {type(chosen).__name__}; expected a name, a Policy, a Plan or plan text")
    if policy.settings.get("eos_id", 0) is None and len(eos) == 1:
        options.setdefault("eos_id", eos[0])
    policy, unused = settle(policy, options)
    if isinstance(chosen, Policy):
        return policy.name, policy.plan(view), dict(policy.settings), unused
    # A policy of the library reads nothing but its settings, so that its plan can be kept.
    key = (policy.name, compat, view, repr(sorted(policy.settings.items())))
    if key not in _PLANS:
        if len(_PLANS) >= _KEPT:
            _PLANS.clear()
        _PLANS[key] = policy.plan(view)
    return policy.name, _PLANS[key], dict(policy.settings), unused


def _spread(name: str, given: Any, count: int) -> list[Any]:
    if given is None or isinstance(given, Mapping):
        return [given] * count
    if not isinstance(given, Sequence) or not all(item is None or isinstance(item, Mapping) for item in given):
        raise TrajspecError(f"{name} is {given!r}; expected one mapping, or a list with one a prompt")
    if len(given) != count:
        raise TrajspecError(f"{name} has {len(given)} entries for {count} prompts; give one mapping, or one a prompt")
    return list(given)


def _row(job: Job, item: Prompt, seed: int, allowed: Any, inputs: Mapping[str, Any]) -> RowPlan:
    model: Any = job.model
    prefix = 0
    if isinstance(item, str):
        if model.codec is None:
            raise TrajspecError(f"{model.name} has no tokenizer: give prompts as token ids")
        prefix = len(model.codec.prefix)
        made = (
            model.encode_prompt(item, job.gen_length) if job.gen_length or not job.infill else model.encode_infill(item)
        )
        tokens, masked, start = made.tokens, made.masked, 0 if job.infill else made.prompt_length
    else:
        tokens = [*item, *[model.mask_id] * job.gen_length]
        masked = [False] * len(item) + [True] * job.gen_length
        start = 0 if job.infill else len(item)
    # Block-causal models count their blocks from the start of the text; the prompt's tail sits in the first open one.
    blocks_from = 0 if job.view == "block_causal" else start
    if job.infill:
        masked = [hidden or token == model.mask_id for hidden, token in zip(masked, tokens, strict=True)]
    for one in (model, *model.others.values()):
        limit = getattr(one, "max_positions", None)
        if limit is not None and len(tokens) > limit:
            raise TrajspecError(
                f"{one.name}: the canvas has {len(tokens)} positions (prompt {len(tokens) - job.gen_length} + "
                f"gen_length {job.gen_length}), the model takes {limit}. Shorten it by {len(tokens) - limit}."
            )
    made_canvas = canvas(
        tokens, masked, start=blocks_from, vocab_size=model.vocab_size, mask_id=model.mask_id, seed=seed, stop=job.eos,
        banned=model.banned_ids, allowed=_allowed(model, allowed, prefix),
    )  # fmt: skip
    return RowPlan(item, made_canvas, start, seed, inputs, allowed)


def _allowed(model: Any, allowed: Mapping[int, Any] | None, prefix: int) -> dict[int, list[int]] | None:
    if allowed is None:
        return None
    table = {}
    for position, ids in allowed.items():
        if isinstance(ids, str):
            if model.codec is None:
                raise TrajspecError("allowed: a bare denoiser has no letters; give token ids")
            ids = model.codec.encode(ids)
        if isinstance(ids, Integral) or not isinstance(ids, Iterable):
            raise TrajspecError(f"allowed: position {position} has {ids!r}, expected a list of ids or letters")
        try:
            table[operator.index(position) + prefix] = [operator.index(token) for token in ids]
        except TypeError:
            raise TrajspecError(
                f"allowed: position {position!r:.40} with {ids!r:.40}; expected a position and ids, whole numbers both"
            ) from None
    return table


def _check_soft(
    model: Any, name: str, nodes: Sequence[Node], gen_length: int, infill: bool, compiles: bool
) -> None:
    """Raise TrajspecError unless a plan shows logits beside tokens exactly to a model that reads them."""
    softens = any(node.op.name == "soften" for node in nodes)
    if isinstance(model, Bare):
        if softens and not model.reads_soft:
            raise TrajspecError(
                f"policy {name} shows the model logits beside tokens (soften), and {model.name} takes (tokens, "
                "positions, visible) alone; let it take a fourth argument, a trajspec.ir.query.Soft"
            )
        return
    if not (softens or model.canvas):
        return
    if not model.canvas:
        raise TrajspecError(
            f"policy {name} shows the model logits beside tokens (soften), and {model.name} reads tokens alone; take "
            "another policy, or a DiffusionGemma model"
        )
    if not softens:
        raise TrajspecError(
            f"{model.name} reads its last prediction beside the tokens, and policy {name} does not show it; take "
            f"policy={model.policy}, or one of your own whose query is ts.soften(...)"
        )
    if infill or gen_length % model.canvas or gen_length == 0:
        given = "infill" if infill else f"gen_length is {gen_length}"
        raise TrajspecError(
            f"{given}, and {model.name} writes whole canvases of {model.canvas} tokens; give a gen_length that is a "
            "multiple of it"
        )
    if compiles:
        raise TrajspecError(f"compile=True: the steps of {model.name} run eagerly only; leave compile out")


def _check_steps(job: Job) -> None:
    for quota in (node for node in job.base.nodes() if node.op.name == "quota"):
        steps, size = quota.attributes["steps"], quota.attributes["size"]
        for row in job.rows:
            blocks = len(set(block_numbers(row.canvas, size)[row.canvas.free].tolist()))
            if steps is not None and steps < blocks:
                raise TrajspecError(
                    f"steps={steps} cannot fill {blocks} blocks of {size}: a block takes a step at least. "
                    f"Give steps={blocks} or more, or a longer block_length"
                )
