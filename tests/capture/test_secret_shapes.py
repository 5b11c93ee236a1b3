"""What looks like a secret, and what must not be taken for one."""

from __future__ import annotations

import base64
import json
import random
import string
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrace.capture.masking import mask_in_file
from foretrace.capture.secret_shapes import (
    secrets_among,
    without_secret_arguments,
    without_secrets,
    without_secrets_in,
)
from foretrace.secret_formats import LEFT_OUT
from foretrace.secret_names import secret_name
from tests.capture.planted import ISSUED, PEM


@pytest.mark.parametrize("kind", ISSUED)
def test_known_formats_are_left_out_wherever_they_stand(kind: str) -> None:
    secret = ISSUED[kind]
    for around in (
        "{}",
        "--flag={}",
        "a {} b",
        '{{"x": "{}"}}',
        "https://host/path?x={}&y=1",
        "'{}'",
        "x:{},y:2",
    ):
        assert secret not in without_secrets_in(around.format(secret)), around


def test_private_keys_are_left_out_whole_even_if_cut_off() -> None:
    assert without_secrets_in(f"key: {PEM} behind") == f"key: {LEFT_OUT} behind"
    assert "MIIE" not in without_secrets_in(PEM[:60])


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("postgres://user:hunter2@host:5432/db", "postgres://<left out>@host:5432/db"),
        ("https://token@github.com/o/r.git", "https://<left out>@github.com/o/r.git"),
        ("redis://:pw@h/0", "redis://<left out>@h/0"),
        ("http://host:8080/a?api_key=abc&n=1", "http://host:8080/a?api_key=<left out>&n=1"),
        ("Authorization: Bearer abc-123-def", "Authorization: <left out> <left out>"),
        ("curl -H 'X-Auth: Basic dXNlcjpwdw=='", "curl -H 'X-Auth: <left out> <left out>'"),
        ('{"password": "hunter2", "lr": 0.1}', '{"password": "<left out>", "lr": 0.1}'),
        ("AccountKey=abc;EndpointSuffix=core", "AccountKey=<left out>;EndpointSuffix=core"),
    ],
)
def test_credentials_within_other_text(text: str, cleaned: str) -> None:
    found = without_secrets_in(text)
    for secret in ("hunter2", "token@", ":pw@", "abc-123-def", "dXNlcjpwdw", "=abc"):
        assert secret not in found
    if "<left out> <left out>" not in cleaned:
        assert found == cleaned


RANDOM: dict[str, Callable[[random.Random], str]] = {
    "hex": lambda source: source.randbytes(16).hex(),
    "base64": lambda source: base64.b64encode(source.randbytes(30)).decode(),
    "base64 for addresses": lambda source: base64.urlsafe_b64encode(source.randbytes(24)).decode(),
    "base32": lambda source: base64.b32encode(source.randbytes(20)).decode(),
    "letters and digits": lambda source: "".join(source.choices(string.ascii_letters + string.digits, k=24)),
    "small letters and digits": lambda source: "".join(
        source.choices(string.ascii_lowercase + string.digits, k=25)
    ),
    "uuid": lambda source: str(uuid.UUID(bytes=source.randbytes(16), version=4)),
}


@pytest.mark.parametrize("kind", RANDOM)
def test_random_text_is_left_out(kind: str) -> None:
    source = random.Random(7)
    values = [RANDOM[kind](source) for _ in range(2_000)]
    missed = [value for value in values if value in without_secrets_in(f"--note={value}")]
    assert len(missed) <= 4, missed  # two of a thousand happen to look like words


@pytest.mark.parametrize(
    "text",
    [
        "meta-llama/Llama-3.1-8B-Instruct",
        "stabilityai/stable-diffusion-xl-base-1.0",
        "expandable_segments:True,max_split_size_mb:128",
        "/usr/local/cuda-12.8/targets/x86_64-linux/lib:/usr/lib/python3.11/site-packages",
        "Linux-6.8.0-1021-aws-x86_64-with-glibc2.35",
        "2.6.0a0+df5bbc09d1.nv24.12",
        "foretrace-runs/train-20261115-060544",
        "DistributedDataParallelCommunicationHook",
        "--gradient-accumulation-steps=4",
        "trainer.optimizer.betas=[0.9,0.95]",
        "data/train/shard-00001-of-00128.parquet",
        "GPU-4f3b1c2d-1111-2222-3333-444455556666,GPU-4f3b1c2d-1111-2222-3333-444455556667",
        "TORCHINDUCTOR_COMPILE_THREADS",
        "no optimizer was seen within 120 steps; mark them with foretrace.step()",
        "2026-11-15T06:05:44+00:00",
        "--max-tokens=4096",
        "tokenizer=gpt2",
        "the last 5 blocks agree within 2%",
        "optimizer.step (torch.optim.adamw.AdamW)",
        "",
    ],
)
def test_ordinary_text_is_kept(text: str) -> None:
    assert without_secrets_in(text) == text


SECRET_NAMES = """
    HF_TOKEN AWS_SECRET_ACCESS_KEY AWS_ACCESS_KEY_ID OPENAI_API_KEY apiKey --api-key WANDB_API_KEY DB_PASSWORD password
    GITHUB_TOKEN_2 GOOGLE_APPLICATION_CREDENTIALS SLACK_BOT_TOKEN sessionCookie private_key ssh-key PGPASSWORD
    SSH_AUTH CI_JOB_TOKEN wandb.api_key HUGGING_FACE_HUB_TOKEN TOKEN_VALUE clientSecret --pwd NPM_TOKEN x-auth-token
"""
OTHER_NAMES = """
    TOKENIZERS_PARALLELISM --max-tokens --num_tokens pad_token --key-dim --tokenizer CUDA_VISIBLE_DEVICES LR keyboard
    authors --passes step_function median_ns compass --monkey
"""


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_names_that_promise_a_secret(name: str) -> None:
    assert secret_name(name)


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_names_that_do_not(name: str) -> None:
    assert not secret_name(name)


def test_arguments() -> None:
    given = (
        "python train.py --api-key=a1 --token t1 --lr 0.1 --password p1 wandb.api_key=k1 +logger.token=t2 --auth --flag"
        " --secret=s1 --max-tokens 5 --key-dim 64 --token=- --pin -5 -p"
    )
    cleaned = (
        "python train.py --api-key=X --token X --lr 0.1 --password X wandb.api_key=X +logger.token=X --auth --flag"
        " --secret=X --max-tokens 5 --key-dim 64 --token=X --pin X -p"
    )
    assert [
        each.replace(LEFT_OUT, "X") for each in without_secret_arguments(given.split())
    ] == cleaned.split()


def test_a_program_in_the_command_line_keeps_its_text_without_its_secrets() -> None:
    code = f'import os; os.environ["HF_TOKEN"] = "{ISSUED["hugging face"]}"; run(lr=0.1)'
    cleaned = without_secret_arguments(["python", "-c", code])[2]
    assert cleaned == f'import os; os.environ["HF_TOKEN"] = "{LEFT_OUT}"; run(lr=0.1)'


def test_nested_values() -> None:
    facts = {
        "command": ["a", ISSUED["github"]],
        "token": "short",
        "n": {"password": ["x"], "lr": 0.1, "none": None},
    }
    assert without_secrets(facts) == {
        "command": ["a", LEFT_OUT],
        "token": LEFT_OUT,
        "n": {"password": [LEFT_OUT], "lr": 0.1, "none": None},
    }


def test_a_commit_is_no_secret_but_its_text_elsewhere_is() -> None:
    commit = "f4c9368c2b02e5bf43b8c7a4006cf6cff9436737"
    assert without_secrets({"commit": commit, "note": commit}) == {"commit": commit, "note": LEFT_OUT}


def test_values_that_must_never_be_written_are_listed() -> None:
    environ = {"HF_TOKEN": "short-but-named", "NOTE": ISSUED["github"], "HOME": "/root", "PASSWORD": "tiny"}
    assert secrets_among(environ, ["--x", ISSUED["openai"]]) == [
        ISSUED["openai"],
        ISSUED["github"],
        "short-but-named",
    ]


@given(st.text(max_size=300))
def test_any_text_is_taken_and_cleaning_twice_changes_nothing(text: str) -> None:
    once = without_secrets_in(text)
    assert without_secrets_in(once) == once


def test_long_text_takes_no_longer_than_its_length() -> None:
    for text in (
        "a" * 50_000,
        "a=" * 25_000,
        "-----BEGIN " * 5_000,
        "://x" * 12_000,
        "eyJ." * 12_000,
        "Bearer " * 8_000,
    ):
        without_secrets_in(text)


def test_secrets_in_a_file_are_overwritten_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "light.json"
    quoted = 'pass"word\\12'
    path.write_text(
        json.dumps({"name": "a secret-token-1 b", "other": quoted, "twice": "secret-token-1" * 2})
    )
    size = path.stat().st_size
    assert mask_in_file(path, ["secret-token-1", quoted]) == 4
    assert path.stat().st_size == size
    stars = "*" * len("secret-token-1")
    found = json.loads(path.read_text())
    assert found == {"name": f"a {stars} b", "other": "*" * (len(quoted) + 2), "twice": stars * 2}
    assert mask_in_file(path, ["secret-token-1"]) == 0
    (tmp_path / "empty").write_bytes(b"")
    assert mask_in_file(tmp_path / "empty", ["secret-token-1"]) == 0


def test_words_that_stand_in_any_recording_are_not_taken_for_secrets() -> None:
    environ = {
        "SORT_KEY": "optimizer",
        "AUTH": "aten.addmm",
        "PASS": "forward_pass",
        "KEY": "/usr/lib/python3",
        "PIN": "12345678",
    }
    assert secrets_among(environ) == []
