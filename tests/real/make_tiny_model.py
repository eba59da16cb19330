"""A tiny Llama with random weights and a tokenizer trained on the spot. Run by install.sh in an
engine's environment.

usage: make_tiny_model.py DIRECTORY       about 2.2 million parameters, vocabulary of 2,048; no network
"""

import inspect
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import argparse
import asyncio
import tarfile

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT = (
    "<|bos|>{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|bos|>", "<|eos|>", "<|user|>", "<|assistant|>", "<|system|>"]


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE trained on standard library source: the same on every machine with
    this Python."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2048, special_tokens=SPECIAL, initial_alphabet=alphabet
    )
    bpe.train_from_iterator(
        [inspect.getsource(m) for m in (os, argparse, tarfile, asyncio.base_events)], trainer
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        pad_token="<|eos|>",
        model_max_length=4096,
    )
    fast.chat_template = CHAT
    return fast


def main() -> None:
    out = sys.argv[1]
    words = tokenizer()
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(out)
    words.save_pretrained(out)
    print(
        out,
        f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters, vocabulary "
        f"{len(words)}",
    )


if __name__ == "__main__":
    main()
