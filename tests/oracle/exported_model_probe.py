"""Loads an exported model as people would, and compares it with nsa-model's results. Prints one JSON object.

    exported_model_probe.py FOLDER CASES.json [--library LIBNSA_OPS] [--transformers]

CASES.json: {"ids": rows, "logits": safetensors file, "prompt": ids, "greedy": ids}
"""
import argparse
import json
import pathlib
import sys

import torch


def greatest_difference(a, b):
    assert a.shape == b.shape and a.dtype == b.dtype == torch.float32, (a.shape, b.shape, a.dtype, b.dtype)
    return (a - b).abs().max().item()


def continue_greedily(model, ids, tokens, limit):
    """Takes each token from a full forward pass. Ids from `limit` on are padding of the vocabulary."""
    text = torch.tensor([ids])
    for _ in range(tokens):
        text = torch.cat([text, model(text)[:, -1:, :limit].argmax(-1)], dim=1)
    return text[0, len(ids):].tolist()


def check_transformers(folder, ids, expected, prompt):
    from transformers import AutoModelForCausalLM, AutoTokenizer, __version__
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    found = {"transformers": __version__, "from_pretrained": greatest_difference(model(ids).logits, expected)}
    # Padding in front of one of two texts changes neither result.
    mask, padded = torch.ones_like(ids), ids.clone()
    mask[0, :37], padded[0, :37] = 0, 0
    logits = model(padded, attention_mask=mask).logits
    found["padded"] = max(greatest_difference(logits[0, 37:], model(ids[:1, 37:]).logits[0]),
                          greatest_difference(logits[1], expected[1]))
    start = torch.tensor([prompt])
    plain = model.generate(start, max_new_tokens=12, do_sample=False)
    assert torch.equal(plain, model.generate(start, max_new_tokens=12, do_sample=False, use_cache=True)), "use_cache"
    if (pathlib.Path(folder) / "tokenizer.json").exists():
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
        found["bos"] = tokenizer.bos_token_id
        found["texts"] = TEXTS
        found["encoded"] = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
        found["decoded"] = [tokenizer.decode(each) for each in found["encoded"]]
    return found


TEXTS = ["The ledger's rows", "naïve Größe, 中文 👩‍👩‍👧  two  spaces\n\n\tand a tab", "we'll 123456 ... <|"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("cases", type=pathlib.Path)
    parser.add_argument("--library")
    parser.add_argument("--transformers", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(arguments.folder))
    import modeling_nsa
    cases = json.loads(arguments.cases.read_text())
    ids = torch.tensor(cases["ids"])
    expected = modeling_nsa.read_weights(cases["logits"])["logits"]
    model = modeling_nsa.load(arguments.folder)
    found = {"largest": expected.abs().max().item()}
    with torch.no_grad():
        assert modeling_nsa.choose_kernels("auto", torch.empty(1, 1, 1, 1), model.config) == "torch"
        found["torch"] = greatest_difference(model(ids), expected)
        if "greedy" in cases:
            limit = cases["vocabulary"]
            found["greedy"] = continue_greedily(model, cases["prompt"], len(cases["greedy"]), limit) == cases["greedy"]
        if arguments.library and model.config.attention == "nsa":
            torch.ops.load_library(arguments.library)
            model.attention_kernels = "aten"
            found["operators"] = greatest_difference(model(ids), expected)
            model.attention_kernels = "fused"
            try:
                model(ids)
                found["fused"] = "computed without a GPU"
            except RuntimeError:
                found["fused"] = "refused"
        if arguments.transformers:
            found |= check_transformers(arguments.folder, ids, expected, cases["prompt"])
    print(json.dumps(found))


main()
