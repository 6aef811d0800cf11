"""A diffusion model drafts, an autoregressive model decides: the same text in a fraction of its calls.

python examples/draft_for_a_target.py
"""

import trajspec as ts

PROMPTS = [
    [{"role": "user", "content": text}]
    for text in ("zoe has 13 pens finds 14 loses 12 ?", "sort $53 $23 $85", "find: list of even, plus 3")
]


def main() -> None:
    target, drafter = ts.load_target("tiny-ar"), ts.load_model("tiny")
    alone = ts.decode(target, PROMPTS, gen_length=48)
    drafted = ts.decode(target, PROMPTS, drafter=drafter, draft_length="adaptive", gen_length=48)
    for one, other in zip(alone, drafted, strict=True):
        assert one.token_ids == other.token_ids
        took = f"{other.calls} with drafts, {other.accepted_lengths} accepted"
        print(f"{other.answer_tokens} tokens: {one.calls} calls alone, {took}")
    print(drafted[0].certificate["text"])

    # Drawn text: with a seed it is the same with and without drafts; `rejection` keeps the law and not the text.
    told = {"gen_length": 48, "temperature": 1.2, "seed": 7}
    same = ts.decode(target, PROMPTS[:1], drafter=drafter, **told)[0]
    assert same.text == ts.decode(target, PROMPTS[:1], **told)[0].text
    law = ts.decode(target, PROMPTS[:1], drafter=drafter, verify="rejection", **told)[0]
    print(law.certificate["text"])

    # Tokens revealed in any order have no law that may be used: the two are refused together.
    try:
        ts.decode(target, PROMPTS[:1], drafter=drafter, draft="denoise", verify="rejection", **told)
    except ts.TrajspecError as error:
        print(error)


if __name__ == "__main__":
    main()
