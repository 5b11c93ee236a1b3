"""Verdicts of predictions in words: one scale for all that people read. JSON keeps the values of `Prediction.verdict`."""

from __future__ import annotations

from foretrace.predict.prediction import Prediction

WORDS = {"gain": "gain", "uncertain": "maybe", "no gain": "none"}


def verdict_word(prediction: Prediction) -> str:
    """gain, maybe or none."""
    return WORDS[prediction.verdict]
