"""Tunes a tiny model by trl's trainers, with LoRA or GPT-OSS, as people write it."""

from __future__ import annotations

import argparse
import json
import os
import pydoc_data.topics
import threading
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TRANSFORMERS_OFFLINE="1")

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
    set_seed,
)
from trl import DPOConfig, SFTConfig

words = argparse.ArgumentParser()
words.add_argument("out", type=Path)
words.add_argument("kind", choices=["sft", "dpo"])
words.add_argument("--plain", action="store_true", help="without pliant")
words.add_argument("--lora", action="store_true")
words.add_argument("--gpt-oss", action="store_true")
words.add_argument("--arguments", type=json.loads, default={}, help="further of the config")
words.add_argument("--pace", type=float, default=0.0, help="until a file `over` is there")
asked = words.parse_args()

if asked.plain:
    from trl import DPOTrainer, SFTTrainer

    torch.set_num_threads(1)
else:
    from pliant.integrations.trl import DPOTrainer, SFTTrainer

passages = "\n".join(pydoc_data.topics.topics.values()).split("\n\n")
texts = [text for text in passages if 60 < len(text) < 200][:80]
made = Tokenizer(models.BPE())
made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
made.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
special = ["<pad>", "<|end|>"]
made.train_from_iterator(
    texts, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
)
tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<|end|>")
tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}"

set_seed(42)
common: dict[str, Any] = {
    "vocab_size": len(tokenizer),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": tokenizer.pad_token_id,
    "eos_token_id": tokenizer.eos_token_id,
}
if asked.gpt_oss:
    model = GptOssForCausalLM(
        GptOssConfig(
            **common,
            intermediate_size=32,
            head_dim=8,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=16,
            max_position_embeddings=256,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
    )
else:
    model = LlamaForCausalLM(LlamaConfig(**common, intermediate_size=64))


class Pace(TrainerCallback):
    def on_step_begin(self, *args: Any, **named: Any) -> None:
        threading.Event().wait(asked.pace * (not Path("over").exists()))


arguments = {
    "output_dir": str(asked.out),
    "max_steps": 6,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "learning_rate": 1e-2,
    "logging_steps": 2,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    "max_length": 64,
    "bf16": False,
    "gradient_checkpointing": False,
    **asked.arguments,
}
if asked.kind == "sft":
    kind, config = SFTTrainer, SFTConfig(**arguments)
    data = Dataset.from_list([{"text": text} for text in texts])
else:
    kind, config = DPOTrainer, DPOConfig(**arguments)
    rows = [(text[:30], text[30:60], text[:30:-1][:40]) for text in texts]
    data = Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": prompt}],
                "chosen": [{"role": "assistant", "content": chosen}],
                "rejected": [{"role": "assistant", "content": rejected}],
            }
            for prompt, chosen, rejected in rows
        ]
    )
lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
trainer = kind(
    model=model,
    args=config,
    train_dataset=data,
    processing_class=tokenizer,
    peft_config=lora if asked.lora else None,
    callbacks=[Pace()],
)
trainer.train()
trainer.save_model(str(asked.out / "final"))
if trainer.is_world_process_zero():
    torch.save(trainer.model.state_dict(), asked.out / "weights.pt")
    (asked.out / "history.json").write_text(json.dumps(trainer.state.log_history, indent=1))
    (asked.out / "best.json").write_text("")
