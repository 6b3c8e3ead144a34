"""The scheduler: who has joined, which server owns which elements, barriers."""
