"""Results become text: tables.py for programs and documents, page.py and terminal.py for people."""
