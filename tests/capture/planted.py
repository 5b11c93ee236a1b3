"""Secrets to plant in programs, and then to search for in what was written."""

from __future__ import annotations

# None of these was ever issued; each is put together here so that no scanner takes this file for a leak.
ISSUED = {
    "aws id": "AKIA" + "IOSFODNN7EXAMPLE",
    "aws key": "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY",
    "github": "ghp_" + "0123456789abcdefABCDEF0123456789abcd",
    "github fine": "github_pat_" + "11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQ",
    "gitlab": "glpat-" + "abcdEFGH1234ijklMNOP",
    "hugging face": "hf_" + "abcdefghijABCDEFGHIJklmnopqrstKLMN",
    "openai": "sk-" + "abcdefghijklmnopqrstT3BlbkFJabcdefghijklmnopqrst",
    "openai project": "sk-proj-" + "abc_DEF-ghijklmnop1234567890",
    "anthropic": "sk-ant-api03-" + "abcdefghij-KLMNOPQRST_1234567890-AA",
    "slack": "xoxb-" + "123456789012-1234567890123-abcdefghijklmnopqrstuvwx",
    "google": "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "stripe": "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "npm": "npm_" + "abcdefghijklmnopqrstuvwxyz0123456789",
    "pypi": "pypi-" + "AgEIcHlwaS5vcmcCJDEyMzQ1Njc4LTEyMzQtMTIzNC0x",
    "jwt": "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0." + "SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c",
    "telegram": "123456789:" + "AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw8",
    "discord": "MTk4NjIyNDgzNDcxOTI1MjQ4." + "Cl2FMQ." + "ZnCjm1XVW7vRze4b7Cq4se7kKWs",
    "nvidia": "nvapi-" + "abcdEFGHijkl1234-_mnopQRSTuvwx5678yz",
    "wandb": "0123456789abcdef" + "0123456789abcdef01234567",
    "uuid": "6fa459ea-ee8a-3ca4-894e-db77e160355e",
    "azure": "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/" + "K1SZFPTOtr/KBHBeksoGMGw==",
}
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAx\nq83vEjRW\n-----END RSA PRIVATE KEY-----"
