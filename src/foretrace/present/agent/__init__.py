"""Answers for programs that read text by the token: trust first, then the answer, cut to a size and said so."""
