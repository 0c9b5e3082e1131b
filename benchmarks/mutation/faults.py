"""Small faults that a person could have made: every place of a file where one fits, and the file with it."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from itertools import islice

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
OTHER_NAMES = {
    "min": "max", "max": "min", "amin": "amax", "amax": "amin", "minimum": "maximum", "maximum": "minimum", "any": "all",
    "all": "any", "argmin": "argmax", "argmax": "argmin", "floor": "ceil", "ceil": "floor", "zeros": "ones", "ones": "zeros",
    "zeros_like": "ones_like", "ones_like": "zeros_like", "mean": "sum", "median": "mean",
}  # fmt: skip
# Words for people and progress, not what is computed; `cast` is for the type checker.
WORDS = {"warn", "warnings", "logging", "_LOG", "print", "say", "note", "advance", "cast", "TypeVar", "NewType"}
SILENT = {"copy", "strict"}  # one spares memory, the other guards against what does not happen: like `assert`
NO_SWAP = {"isinstance", "issubclass", "getattr", "setattr", "hasattr", *OTHER_NAMES}


@dataclass(frozen=True)
class Edit:
    """Bytes `start` to `end` of a file become `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Mutant:
    """A file with one fault.

    Parameters
    ----------
    scope : name of the function or class, empty for the module
    statement : texts of the lines of the smallest statement around the fault, of its head if it has a body
    before, after : the changed lines, without indentation
    text : the whole file with the fault
    """

    file: str
    line: int
    scope: str
    in_function: bool
    statement: tuple[str, ...]
    before: str
    after: str
    text: str

    @property
    def key(self) -> str:
        """The same as long as the changed lines are: other lines may come and go."""
        return f"{self.file}\n- {self.before}\n+ {self.after}".replace("\n", "\n  ")


@dataclass(frozen=True)
class _Place:
    node: ast.AST
    scope: str
    in_function: bool
    statement: tuple[str, ...]
    faults: tuple[tuple[Edit, ...], ...]


def places(file: str, text: str) -> list[list[Mutant]]:
    """For each place of a file the faults that fit there."""
    data = text.encode()
    found = []
    for place in _Finder(data).found:
        mutants = []
        for edits in place.faults:
            changed = _edited(data, edits).decode()
            before, after = _difference(text, changed)
            line = getattr(place.node, "lineno", 1)
            mutants.append(Mutant(file, line, place.scope, place.in_function, place.statement, before, after, changed))
        found.append(mutants)
    return found


def draw(found: list[list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """At most one fault of a place, places and faults by chance.

    The chance of a place comes from its own text, so that the draw stays the same where the code does.
    """

    def chance(text: str) -> int:
        return int(hashlib.sha256(f"{seed}\n{text}".encode()).hexdigest(), 16)

    seen: dict[str, int] = {}
    ranked = []
    for mutants in found:
        text = f"{mutants[0].file}\n{mutants[0].scope}\n{mutants[0].before}\n{mutants[0].after}"
        seen[text] = seen.get(text, 0) + 1
        rank = chance(f"{text}\n{seen[text]}")
        ranked.append((rank, mutants[(rank >> 64) % len(mutants)]))
    in_order = (mutant for _, mutant in sorted(ranked, key=lambda pair: pair[0]))
    return list(islice((mutant for mutant in in_order if _is_python(mutant.text)), count))


class _Finder:
    """Walks a file and leaves out docstrings, annotations, messages and what else has no effect on results."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.starts = [0]
        for line in data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.lines = [line.decode().strip() for line in data.splitlines()]
        self.found: list[_Place] = []
        self.scope: list[str] = []
        self.functions = 0
        self.statement: tuple[str, ...] = ()
        for statement in ast.parse(data).body:
            self._visit(statement)

    # Positions.

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def _source(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.data[start:end].decode()

    def _whole(self, node: ast.AST, text: str) -> tuple[Edit, ...]:
        return (Edit(*self._span(node), text),)

    def _between(self, left: ast.AST, right: ast.AST, old: str, new: str) -> tuple[Edit, ...] | None:
        """The operator between two operands, in other words."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self.data[start:end].decode()
        pattern = re.sub(r"\s+", r"\\s+", re.escape(old).replace("\\ ", " "))
        match = re.search(rf"\b{pattern}\b" if old[0].isalpha() else re.escape(old), gap)
        if match is None or "#" in gap:
            return None
        before, after = len(gap[: match.start()].encode()), len(gap[: match.end()].encode())
        return (Edit(start + before, start + after, new),)

    def _add(self, node: ast.AST, *faults: tuple[Edit, ...] | None) -> None:
        kept = tuple(fault for fault in faults if fault is not None)
        if kept:
            self.found.append(_Place(node, ".".join(self.scope), self.functions > 0, self.statement, kept))

    # The walk.

    def _visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno or node.lineno
            self.statement = tuple(self.lines[node.lineno - 1 : max(last, node.lineno)])
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is not None:
            method(node)
        else:
            self._children(node)

    def _children(self, node: ast.AST) -> None:
        statement = self.statement
        for child in ast.iter_child_nodes(node):
            self._visit(child)
            self.statement = statement

    def _all(self, nodes: list[ast.stmt]) -> None:
        for node in nodes:
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                self._visit(node)

    def _FunctionDef(self, node: ast.FunctionDef) -> None:
        head = self.statement
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self._visit(default)
                self.statement = head
        self.scope.append(node.name)
        self.functions += 1
        self._all(node.body)
        self.functions -= 1
        self.scope.pop()

    def _ClassDef(self, node: ast.ClassDef) -> None:
        if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
            return
        self.scope.append(node.name)
        self._all(node.body)
        self.scope.pop()

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._removed_store(node, node.target)
            self._visit(node.value)

    def _Assign(self, node: ast.Assign) -> None:
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        if "__all__" in names or _is_type(node.value):
            return
        self._removed_store(node, node.targets[0])
        self._children(node)

    def _removed_store(self, node: ast.stmt, target: ast.expr) -> None:
        if isinstance(target, ast.Attribute | ast.Subscript) and self.functions:
            self._add(node, self._whole(node, "pass"))

    def _AugAssign(self, node: ast.AugAssign) -> None:
        old, new = OPERATORS.get(type(node.op), ("", ""))
        swapped = self._between(node.target, node.value, f"{old}=", f"{new}=") if old else None
        self._add(node, swapped, self._whole(node, "pass"))
        self._children(node)

    def _If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in self._source(node.test):
            return
        self._condition(node)

    def _condition(self, node: ast.If | ast.While | ast.IfExp) -> None:
        if not isinstance(node.test, ast.Compare | ast.UnaryOp | ast.Constant):  # these have faults of their own
            self._add(node.test, self._whole(node.test, f"(not ({self._source(node.test)}))"))
        self._children(node)

    _While = _condition
    _IfExp = _condition

    def _comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._add(test, self._whole(test, "True"))
        self._children(node)

    def _Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            if _words(node.value.func) & WORDS:
                return
            self._add(node, self._whole(node, "pass"))
        self._children(node)

    def _Raise(self, node: ast.Raise) -> None:
        if "NotImplementedError" not in self._source(node):
            self._add(node, self._whole(node, "pass"))

    def _Assert(self, node: ast.Assert) -> None:
        return

    def _Continue(self, node: ast.Continue) -> None:
        self._add(node, self._whole(node, "break"), self._whole(node, "pass"))

    def _Break(self, node: ast.Break) -> None:
        self._add(node, self._whole(node, "continue"), self._whole(node, "pass"))

    def _Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._add(node, self._whole(node, "pass"))
        elif not isinstance(node.value, ast.Constant):
            self._add(node, self._whole(node.value, "None"))
        self._children(node)

    def _keyword(self, node: ast.keyword) -> None:
        if node.arg not in SILENT:
            self._visit(node.value)

    def _JoinedStr(self, node: ast.JoinedStr) -> None:
        return

    def _Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
            old, others = COMPARISONS[type(operator)]
            self._add(node, *(self._between(left, right, old, new) for new in others))
        self._children(node)

    def _BinOp(self, node: ast.BinOp) -> None:
        strings = [side for side in (node.left, node.right) if _is_text(side)]
        if type(node.op) in OPERATORS and not strings:
            self._add(node, self._between(node.left, node.right, *OPERATORS[type(node.op)]))
        self._children(node)

    def _BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._add(node, self._between(left, right, old, new))
        self._children(node)

    def _UnaryOp(self, node: ast.UnaryOp) -> None:
        sign = {ast.Not: "not", ast.USub: "-", ast.Invert: "~"}.get(type(node.op))
        if sign:
            start = self._span(node)[0]
            self._add(node, (Edit(start, start + len(sign), ""),))
        self._children(node)

    def _Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self._add(node, self._whole(node, str(not value)))
        elif isinstance(value, int):
            others = [value + 1, value - 1] if value else [1]
            self._add(node, *(self._whole(node, str(other)) for other in others))
        elif isinstance(value, float):
            others = [value * 2, value / 2] if value else [1.0]
            self._add(node, *(self._whole(node, repr(other)) for other in others))

    def _Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.slice, ast.Slice):
            for side, sign in ((node.slice.lower, "+"), (node.slice.upper, "-")):
                if side is not None and not isinstance(side, ast.Constant | ast.UnaryOp):
                    self._add(side, self._whole(side, f"({self._source(side)}) {sign} 1"))
        self._children(node)

    def _Call(self, node: ast.Call) -> None:
        words = _words(node.func)
        if words & {"cast"}:
            self._visit(node.args[1])
            return
        if words & WORDS:
            return
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in OTHER_NAMES:
            end = self._span(node.func)[1]
            self._add(node, (Edit(end - len(name), end, OTHER_NAMES[name]),))
        if len(node.args) >= 2 and name not in NO_SWAP and not any(isinstance(a, ast.Starred) for a in node.args[:2]):
            first, second = node.args[:2]
            if self._source(first) != self._source(second):
                swapped = (
                    Edit(*self._span(first), self._source(second)),
                    Edit(*self._span(second), self._source(first)),
                )
                self._add(node, swapped)
        self._children(node)


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _words(node: ast.expr) -> set[str]:
    """All names of `a.b.c`."""
    return {part.id if isinstance(part, ast.Name) else getattr(part, "attr", "") for part in ast.walk(node)}


def _is_type(node: ast.expr) -> bool:
    """Whether this is `tuple[int, …]` or the like, a name for a type."""
    return isinstance(node, ast.Subscript) and bool(
        _words(node.value) & {"tuple", "list", "dict", "Callable", "NDArray"}
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _edited(data: bytes, edits: tuple[Edit, ...]) -> bytes:
    for edit in sorted(edits, key=lambda edit: -edit.start):
        data = data[: edit.start] + edit.text.encode() + data[edit.end :]
    return data


def _difference(old: str, new: str) -> tuple[str, str]:
    """The lines between the common start and the common end of two texts, without indentation."""
    a, b = old.splitlines(), new.splitlines()
    least = min(len(a), len(b))
    start = next((n for n in range(least) if a[n] != b[n]), least)
    end = next((n for n in range(least - start) if a[-1 - n] != b[-1 - n]), least - start)
    return tuple("\n".join(line.strip() for line in lines[start : len(lines) - end]) for lines in (a, b))  # type: ignore[return-value]
