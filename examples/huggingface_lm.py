"""A Hugging Face causal language model, trained from scratch on Python's own documentation.

pliant run examples/huggingface_lm.py 50                # needs: pip install transformers
"""

import pydoc_data.topics
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import pliant

text = "\n".join(pydoc_data.topics.topics.values()).encode()
tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
windows = tokens[: len(tokens) // 64 * 64].view(-1, 64)

pliant.seed(1)
config = LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2)
config.num_attention_heads = config.num_key_value_heads = 4
model = LlamaForCausalLM(config)

with pliant.Session(
    model=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
    dataset=windows,
    global_batch_size=32,
    micro_batch_size=4,
    max_grad_norm=1.0,
) as session:
    for step in session.steps(int(sys.argv[1]) if sys.argv[1:] else 50):
        for batch in step:
            step.backward(model(input_ids=batch, labels=batch).loss)
        session.log(loss=step.loss)
    session.save("runs/llama.pt")
