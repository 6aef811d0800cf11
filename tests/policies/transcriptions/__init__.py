"""Published decoders as plain loops, written from their descriptions; only the noise generator is the library's.

    decoder(model, prompt, ..., but="") -> states

`model(tokens int64 [R, W], positions int64 [R, W], visible bool [R, W, W] or None) -> logits [R, W, V]`. A state is a
list of ids with -1 where nothing is written yet; there is one for the start and one for every step. `but` names one
detail to get wrong, for tests that must notice it.
"""
