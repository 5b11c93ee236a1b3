"""Results as text: tables for programs and documents, styled lines for the terminal."""
