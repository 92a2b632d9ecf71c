"""Errors with a sentence for the person who can put them right."""


class TenureError(Exception):
    """Anything that Tenure raises on purpose. Its text is a sentence that is safe to show and to log."""


class UnreadableObject(TenureError):
    """An object of the API that the operator does not understand, and therefore does not act upon."""


class InvalidResource(UnreadableObject):
    """A custom resource with values that this version does not know.

    ``name`` is ``namespace/name``; ``problems`` are sentences, each beginning with the path of the field.
    Values are not quoted: a template may hold literals that belong in no log.
    """

    def __init__(self, name: str, problems: tuple[str, ...]) -> None:
        super().__init__(f"{name}: " + "; ".join(problems))
        self.name = name
        self.problems = problems


class InvalidSettings(TenureError):
    """Settings that the program cannot start with; ``problems`` are sentences, each beginning with the
    setting."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
