"""The tokenizer of the bundled model: the words of its tasks, single digits, and bytes for everything else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from tools import tiny_data

PAD, EOS, BOS, ANSWER, MASK = SPECIAL = ("<|pad|>", "<|eos|>", "<|bos|>", "<|answer|>", "<|mask|>")

# A digit carries the space before it: " 4" starts a number and "4" continues one, so tens and units are told apart.
# A price of two digits is one token: sums are learnt by digit, an order is learnt from whole numbers.
PIECES = r" \$[0-9]{2}(?![0-9])|\n *| ?[0-9]| ?[A-Za-z]+| ?[^\sA-Za-z0-9]+|\s"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}{{ bos_token + message['content'] + '<|answer|>' }}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}"
    "{% endfor %}"
)


def words(samples: int = 2000) -> list[str]:
    """Every piece of more than one byte that the tasks use, sorted; `samples` items a task meet them all."""
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    found = {f" {digit}" for digit in range(10)}
    for task in tiny_data.TASKS:
        for index in range(samples):
            problem = tiny_data.item(task, "train", index)
            for text in (problem.prompt, problem.completion):
                found |= {piece for piece, _ in split.pre_tokenize_str(text)}
    return sorted(piece for piece in found if len(piece) > 1)


def build() -> Tokenizer:
    """Specials, then 256 bytes, then words; a word of the vocabulary is one token, any other text becomes bytes."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    entries = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    entries += [level.pre_tokenize_str(word)[0][0] for word in words()]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    # ignore_merges looks a whole piece up before it falls apart into bytes; there are no merges to apply.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PIECES), "isolated"), level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def save(directory: Path, max_length: int) -> None:
    """Writes tokenizer.json and a tokenizer_config.json that transformers' AutoTokenizer loads."""
    directory.mkdir(parents=True, exist_ok=True)
    build().save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD, "eos_token": EOS, "bos_token": BOS, "mask_token": MASK,
        "extra_special_tokens": {"answer_token": ANSWER},
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    save(parser.parse_args().directory, max_length=256)
