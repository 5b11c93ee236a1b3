"""GPT-2 of transformers writes 64 words after a prompt, greedily, batch 4, fp32, with generate() as it is."""

import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel

FIX = os.environ.get("FIX", "").split(",")
dev = "cuda" if torch.cuda.is_available() else "cpu"
b, prompt, words, layers = (4, 64, 64, 12) if dev == "cuda" else (1, 8, 4, 1)
torch.manual_seed(0)

config = GPT2Config(n_layer=layers, eos_token_id=None, bos_token_id=None, pad_token_id=0)
model = GPT2LMHeadModel(config).to(dev).eval()
if "bf16" in FIX:
    model = model.to(torch.bfloat16)
more = {"cache_implementation": "static"} if "compile_static" in FIX else {}
for _ in range(100_000):
    input_ids = torch.randint(1, 50000, (b, prompt)).to(dev)
    out = model.generate(
        input_ids, attention_mask=torch.ones_like(input_ids), max_new_tokens=words, do_sample=False, **more
    )
    answer = out.cpu()
