"""The parts of the GPU check: each measures or compares one thing and gives rows of (what, value, unit, ok)."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import trajspec as ts
from trajspec.prepare import prepare
from trajspec.runtime.compiled import Compiler
from trajspec.runtime.kernels.score import score_rows
from trajspec.runtime.loop import drive
from trajspec.runtime.models import Model
from trajspec.runtime.models.forward import Forward
from trajspec.runtime.packed import Part
from trajspec.runtime.packing import quickest
from trajspec.runtime.planner import NODES, Costs, Planner

BLOCK = 32
TOLD = {"policy": "threshold", "threshold": 0.9999, "gen_length": 48}
PROMPTS = [
    [{"role": "user", "content": text}]
    for text in ("zoe has 13 pens finds 14 loses 12 ?", "sort $53 $23 $85", "find: list of even, plus 3")
]


@dataclass(frozen=True)
class Setting:
    """Where, and how large: `small` shapes are for a smoke test."""

    device: str
    small: bool

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def contexts(self) -> tuple[int, ...]:
        """How many positions the canvases of the large model have."""
        return (64, 96) if self.small else (512, 2048)

    @property
    def vocabulary(self) -> int:
        return 301 if self.small else 126_464

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.small else torch.bfloat16

    @property
    def runs(self) -> int:
        return 3 if self.small else 9


#: One line of the table: what, value, unit, and whether it is as it has to be (None: a measurement).
Row = tuple[str, Any, str, bool | None]


def waits(setting: Setting) -> None:
    """Until the device has done what it was told."""
    if setting.cuda:
        torch.cuda.synchronize()


def seconds(setting: Setting, work: Callable[[], Any], runs: int | None = None) -> list[float]:
    """How long `work` takes, warm, run by run."""
    for _ in range(2):
        work()
    found = []
    for _ in range(runs or setting.runs):
        waits(setting)
        began = time.perf_counter()
        work()
        waits(setting)
        found.append(time.perf_counter() - began)
    return found


def copy_bandwidth(setting: Setting) -> float:
    """Bytes per second that a copy on the device moves, read and written."""
    size = 2**22 if setting.small else 2**31
    source = torch.zeros(size, dtype=torch.uint8, device=setting.device)
    into = torch.empty_like(source)
    return 2 * size / statistics.median(seconds(setting, lambda: into.copy_(source)))


# Scores.


def adversarial(vocabulary: int, dtype: torch.dtype, device: str) -> Tensor:
    """Logits [R, V]: ties, sure tokens, wide and narrow rows, the likeliest first and last."""
    g = torch.Generator().manual_seed(1)
    rows = torch.randn(12, vocabulary, generator=g) * 2
    rows[1] = 0.0
    rows[2, 7] = rows[2, 3] = rows[2].max() + 5
    rows[3, 0], rows[4, -1] = rows[3].max() + 30, rows[4].max() + 30
    rows[5] *= 20
    rows[6] *= 1e-3
    rows[7, 5:9] = -math.inf
    rows[8] = rows[8] - 1e4
    return rows.to(device, dtype)


def off(found: Any, logits: Tensor) -> str | None:
    """How scores of `logits` differ from float64's by more than they may, None when they do not."""
    exact = score_rows(logits.double().cpu(), None, None, True, True)
    if not torch.equal(found.token.cpu(), exact.token):
        return f"tokens {found.token.tolist()}, expected {exact.token.tolist()}"
    for name in ("log_confidence", "margin", "entropy"):
        mine, theirs = getattr(found, name).double().cpu(), getattr(exact, name)
        if not torch.allclose(mine, theirs, rtol=2e-5, atol=2e-5):
            return f"{name} is off by {(mine - theirs).abs().max():.2g}"
    return None


def kernel(setting: Setting) -> Iterator[Row]:
    """The score kernel beside float64, and its bandwidth beside a copy's."""
    for dtype in (torch.float32, torch.bfloat16):
        logits = adversarial(setting.vocabulary, dtype, setting.device)
        told = off(score_rows(logits, None, None, True, True), logits)
        yield f"score, {dtype}, 12 hard rows", told or "as float64", "", told is None
        first = score_rows(logits[:1], None, None, True, True)
        whole = score_rows(logits, None, None, True, True)
        same = bool(torch.equal(first.log_confidence, whole.log_confidence[:1]))
        yield f"score, {dtype}: a row alone has the bits it has among 12", same, "", same
        wrong = score_rows(logits.flip(-1), None, None, True, True)
        yield (
            f"score, {dtype}: a wrong answer is noticed (control)",
            off(wrong, logits) is not None,
            "",
            (off(wrong, logits) is not None),
        )
    speed = copy_bandwidth(setting)
    yield "copy on the device", speed / 1e9, "GB/s", None
    for dtype in (torch.bfloat16, torch.float32):
        for rows in (32, 256, 1024) if not setting.small else (8,):
            logits = torch.randn(rows, setting.vocabulary, device=setting.device).to(dtype)
            took = statistics.median(seconds(setting, lambda logits=logits: score_rows(logits, None)))
            label = f"score, {dtype}, {rows} x {setting.vocabulary}"
            yield label, logits.nbytes / took / 1e9, "GB/s of logits", None
            yield f"{label}, of the copy's", logits.nbytes / took / speed, "", None


# Graphs.


def graphs(setting: Setting) -> Iterator[Row]:
    """Whole decodes of `tiny`: captured, compiled and eager; tokens, order, and the logits of every step."""
    model = ts.load_model("tiny", device=setting.device)
    for view in ("full", "dual") if not setting.small else ("dual",):
        told = TOLD | {"cache": view}
        for count in (1, 3) if not setting.small else (1,):
            job = prepare(model, PROMPTS[:count], told)
            plan, _ = ts.optimise(job.plan)
            rows = [row.canvas for row in job.rows]
            ways: dict[str, tuple[list[Any], list[Tensor]]] = {}
            kinds: list[tuple[str, str]] = [("none", "compiled")]
            kinds += [("graph", "captured")] if setting.cuda else [("tape", "taped")]
            backend = "none" if setting.small else "inductor"
            for capture, name in kinds:
                compiler = Compiler(model, backend, capture)  # type: ignore[arg-type]
                ways[name] = recorded(plan, model, rows, job.model.pad_id, setting, compiler)
            ways["eager"] = recorded(plan, model, rows, job.model.pad_id, setting, None)
            label, where = kinds[-1][1], f"tiny, {view}, {count} rows"
            paths, logits = ways[label]
            yield (
                f"{where}: {label} has the compiled path",
                paths == ways["compiled"][0],
                "",
                (paths == ways["compiled"][0]),
            )
            bits = equal(logits, ways["compiled"][1])
            yield f"{where}: {label} has the compiled logits, bit by bit", bits, "", bits
            spoilt = [part + 1e-6 * part.abs().clamp(min=1) for part in logits]
            yield (
                f"{where}: other logits are noticed (control)",
                not equal(spoilt, ways["compiled"][1]),
                "",
                (not equal(spoilt, ways["compiled"][1])),
            )
            yield f"{where}: {label} has the eager path (near ties may part)", paths == ways["eager"][0], "", None


def recorded(plan: Any, model: Any, rows: Any, pad: int, setting: Setting, compiler: Any) -> tuple[list, list[Tensor]]:
    """The paths of the rows, and the logits that every step saw at masked positions."""
    logits: list[Tensor] = []
    asked = [r for item in plan.nodes() if item.op.calls_model for r in item.results if r.kind.name == "logits"]
    driver = drive(plan, model, rows, pad_id=pad, device=setting.device, compiler=compiler)
    while True:
        try:
            event = next(driver)
        except StopIteration as end:
            return [one.path for one in end.value[0]], logits
        said = event.values[asked[0]]
        logits.append(torch.nan_to_num(said[: len(event.rows), : event.before.tokens.shape[1]]).clone())


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether two runs saw the same logits, bit by bit."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# The large model.


def large(setting: Setting) -> Model:
    """A network of LLaDA-8B's shape with random weights, made on the device (small: two thin layers)."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from trajspec.runtime.attention import IMPLEMENTATION, register

    register()
    width, layers, heads, inner = (64, 2, 4, 96) if setting.small else (4096, 32, 32, 12_288)
    config = LlamaConfig(
        vocab_size=setting.vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads, intermediate_size=inner, max_position_embeddings=4096, use_cache=False,
        tie_word_embeddings=False, pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    config._attn_implementation = IMPLEMENTATION
    with torch.device("meta"):
        network = LlamaForCausalLM(config).to(setting.dtype)
    network = network.to_empty(device=setting.device)
    generator = torch.Generator(device=setting.device).manual_seed(0)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            weight.fill_(1.0) if "norm" in name else weight.normal_(0, 0.02, generator=generator)
    # Made on the meta device, its table of frequencies holds nothing.
    network.model.rotary_emb = LlamaRotaryEmbedding(config).to(setting.device)
    network = network.eval().requires_grad_(False)
    forward = Forward(network)
    return Model(
        name="random weights", kind="text", vocab_size=setting.vocabulary, mask_id=setting.vocabulary - 1, pad_id=0,
        eos_ids=(), banned_ids=(setting.vocabulary - 1,), max_positions=None, dtype=setting.dtype,
        device=torch.device(setting.device), codec=None, denoise=forward, network=network, cache=forward,
    )  # fmt: skip


def step(setting: Setting, model: Model) -> Iterator[Row]:
    """A step of the dual view beside the time that its bytes take at the copy's bandwidth; launches and waits."""
    context = setting.contexts[0]
    weights = sum(p.nbytes for n, p in model.network.named_parameters() if "embed" not in n)
    config = model.network.config
    kept = 2 * config.num_hidden_layers * context * config.hidden_size * model.network.dtype.itemsize
    floor = (weights + kept) / copy_bandwidth(setting)
    yield f"bytes of a step at context {context}, at the copy's bandwidth", 1e3 * floor, "ms", None
    prompt = [1 + n % (setting.vocabulary - 2) for n in range(context - BLOCK)]
    job = prepare(model, [prompt], {"policy": "llada_low_confidence", "gen_length": BLOCK, "cache": "dual"})
    plan, _ = ts.optimise(job.plan)
    backend = "none" if setting.small else "inductor"
    # What is compiled takes longest, and what is captured matters most: in this order, should time run out.
    ways: list[tuple[str, Any]] = [("eager", None)]
    ways += [("captured", Compiler(model, backend, "graph" if setting.cuda else "tape"))]
    ways += [("compiled", Compiler(model, backend))]
    for name, compiler in ways:
        began = time.perf_counter()
        times = stepped(plan, model, job, setting, compiler)
        first = time.perf_counter() - began
        times = stepped(plan, model, job, setting, compiler)
        middle = statistics.median(times[3:])
        yield f"step, {name}", 1e3 * middle, "ms", None
        yield f"step, {name}, times the bytes", middle / floor, "", None
        yield f"first run, {name} (compiling and capture included)", first, "s", None
        yield from profiled(plan, model, job, setting, compiler, name)


def stepped(plan: Any, model: Model, job: Any, setting: Setting, compiler: Any) -> list[float]:
    """Seconds of every step of a run; the status that a step's end reads waits for the device."""
    driver = drive(plan, model, [row.canvas for row in job.rows], device=setting.device, compiler=compiler)
    times, last = [], time.perf_counter()
    for _ in driver:
        now = time.perf_counter()
        times.append(now - last)
        last = now
    return times


def profiled(plan: Any, model: Model, job: Any, setting: Setting, compiler: Any, name: str) -> Iterator[Row]:
    """What the host asks of the device in one step."""
    from torch.profiler import ProfilerActivity, profile

    driver = drive(plan, model, [row.canvas for row in job.rows], device=setting.device, compiler=compiler)
    for _ in range(3):
        next(driver)
    waits(setting)
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if setting.cuda else [])]
    with profile(activities=kinds) as told:
        next(driver)
        waits(setting)
    driver.close()
    counts: dict[str, int] = {}
    for event in told.events():
        counts[event.name] = counts.get(event.name, 0) + 1
    launches = sum(n for event, n in counts.items() if "LaunchKernel" in event)
    yield f"{name}: kernels launched in a step", launches, "", None
    yield f"{name}: graphs launched in a step", counts.get("cudaGraphLaunch", 0), "", None
    # One of each at the end of a step, where the host reads what became of the rows.
    reads = counts.get("aten::_local_scalar_dense", 0) + sum(n for e, n in counts.items() if "Memcpy DtoH" in e)
    yield f"{name}: reads of the device in a step", reads, "", None


def window(model: Model, context: int, count: int, setting: Setting) -> Callable[[Tensor | None], list[Tensor]]:
    """The packed call of `count` states of one row's last block, all on the row's stored keys."""
    g = torch.Generator().manual_seed(2)
    device = setting.device
    store = model.new_store(1, context)
    whole = torch.arange(context, device=device)[None]
    keys = torch.cat([torch.ones(1, context), torch.zeros(1, 1)], 1).bool().to(device)
    canvas = torch.randint(0, setting.vocabulary - 1, (1, context), generator=g).to(device)
    model.cached(canvas, whole, whole, store, keys)
    at = whole[:, -BLOCK:].expand(count, -1).contiguous()
    states = torch.randint(0, setting.vocabulary - 1, (count, BLOCK), generator=g).to(device)
    rows = torch.zeros(count, dtype=torch.int64, device=device)

    def call(index: Tensor | None = None) -> list[Tensor]:
        pick = (lambda part: part) if index is None else (lambda part: part[index])
        parts = [Part(pick(states), pick(at), pick(at), pick(keys.expand(count, -1)), store, pick(rows))]
        return model.packed(parts)

    return call


def nodes(setting: Setting, model: Model) -> Iterator[Row]:
    """What a packed call of n states costs beside one of one state, and what the planner makes of it."""
    for context in setting.contexts:
        samples: list[tuple[int, float]] = []
        for count in (1, 2, 4, 8, 16):
            call = window(model, context, count, setting)
            samples.append((count, statistics.median(seconds(setting, lambda call=call: call(None)))))
            ratio = samples[-1][1] / samples[0][1]
            yield f"c({count}) at context {context}", ratio, "calls of one state", None
        best, layouts = quickest(model, context, BLOCK, 8)
        for name, took in layouts.items():
            label = f"8 states at context {context}, laid out by {name}{' (chosen)' if name == best else ''}"
            yield label, took / samples[0][1], "calls of one state", None
        yield f"a call of one state at context {context}", 1e3 * samples[0][1], "ms", None
        costs = Costs.fit(samples)
        for chance in (0.5, 0.7, 0.9):
            planner = Planner(costs, NODES, chance=chance)
            yield f"the planner's choice at context {context}, acceptance {chance}", planner.choose(), "states", None


def invariance(setting: Setting, model: Model) -> Iterator[Row]:
    """In how many states an answer in a packed call is that of a call of its own."""
    for count in (2, 4, 8, 16):
        bits = same = total = 0
        for _ in range(2):
            call = window(model, setting.contexts[0], count, setting)
            packed = call(None)[0]
            for number in range(count):
                alone = call(torch.tensor([number], device=setting.device))[0][0]
                bits += bool(torch.equal(packed[number], alone))
                same += bool(torch.equal(packed[number].argmax(-1), alone.argmax(-1)))
                total += 1
        yield f"{setting.dtype}: of {total} states in calls of {count}, bit for bit as alone", bits, "", None
        yield f"{setting.dtype}: of {total} states in calls of {count}, with the same tokens", same, "", None


def speculated(setting: Setting) -> Iterator[Row]:
    """`tiny` speculated on this device: the base's own path, in fewer calls."""
    model = ts.load_model("tiny", device=setting.device)
    told = TOLD | {"cache": "dual"}
    base = ts.decode(model, PROMPTS[:1], **told)[0]
    for compiles in (False,) if setting.small else (False, True):
        fast = ts.decode(model, PROMPTS[:1], draft="tree", compile=compiles, **told)[0]
        where = "compiled" if compiles else "eager"
        yield (
            f"tree, {where}: the base's path",
            fast.path == base.path,
            "",
            None if compiles else (fast.path == base.path),
        )
        yield f"tree, {where}: calls", f"{base.calls} -> {fast.calls}", "", None


def big(setting: Setting) -> Iterator[Row]:
    """All that needs the large model."""
    began = time.perf_counter()
    model = large(setting)
    waits(setting)
    yield "the large model made", time.perf_counter() - began, "s", None
    with torch.inference_mode():
        for part in (nodes, invariance, step):
            yield from part(setting, model)


#: By name: the part, and how many seconds it may take on a GPU.
PARTS: dict[str, tuple[Callable[[Setting], Iterator[Row]], int]] = {
    "kernel": (kernel, 90),
    "graphs": (graphs, 150),
    "speculated": (speculated, 90),
    "big": (big, 330),
}
