"""The review page as a person uses it; what the page and the database say afterwards."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.tables import read_csv, read_names


def stored(run: Path) -> list[tuple[str, Any]]:
    with closing(sqlite3.connect(run / "review.sqlite")) as database:
        return [
            (kind, json.loads(body)) for kind, body in database.execute("SELECT kind, body FROM actions ORDER BY id")
        ]


def until(page: Any, condition: str) -> None:
    """Wait for what a script says; by asking, because the page allows no script to be made of text."""
    for _ in range(1200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def visit(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector('main[aria-busy="false"]')


def counts(page: Any) -> dict[int, int]:
    """Label → number of regions, as the cards say, in a moment in which no card waits for its pictures."""
    facts = "[c.dataset.label, c.querySelector('.count').textContent, c.querySelectorAll('.tile').length]"
    look = f"document.querySelector('.tiles[aria-busy]') ? null : [...document.querySelectorAll('.card')].map(c => {facts})"
    for _ in range(1200):
        if (cards := page.evaluate(look)) is not None:
            break
        page.wait_for_timeout(50)
    assert cards is not None, "a card still waits for its pictures"
    out = {}
    for label, words, tiles in cards:
        out[int(label)] = int(re.search(r"· (\d+) region", words)[1])  # type: ignore[index]
        assert tiles == min(out[int(label)], 24)
    return out


def until_counts(page: Any, expected: dict[int, int]) -> None:
    """What was stored is shown a moment later, when the answer has come."""
    for _ in range(200):
        if (found := counts(page)) == expected:
            return
        page.wait_for_timeout(50)
    assert found == expected


def card(page: Any, label: int) -> Any:
    return page.locator(f'.card[data-label="{label}"]')


def until_stored(page: Any, run: Path, count: int) -> list[tuple[str, Any]]:
    for _ in range(1200):
        if len(rows := stored(run)) >= count:
            return rows
        page.wait_for_timeout(50)
    raise AssertionError(f"expected {count} actions in the database, found {stored(run)}")


def test_a_review_from_the_first_name_to_apply(page: Any, address: str, run: Path, tmp_path: Path):
    visit(page, address)
    start = counts(page)
    assert start == {0: 0, **read_csv(run / "regions.csv")["label"].value_counts().to_dict()}
    page.screenshot(path=tmp_path / "start.png")

    card(page, 1).locator(".name").fill("long scratch")
    page.keyboard.press("Enter")
    assert until_stored(page, run, 1)[-1] == ("name", {"label": 1, "name": "long scratch"})

    card(page, 3).get_by_role("button", name="Merge").click()
    page.screenshot(path=tmp_path / "merge.png")
    page.locator('#merge-choices [data-label="2"]').click()
    card(page, 3).wait_for(state="detached")
    until_counts(page, {0: 0, 1: start[1], 2: start[2] + start[3]})
    assert stored(run)[-1] == ("merge", {"from": 3, "into": 2})

    card(page, 2).get_by_role("button", name="Split").click()
    page.get_by_label("Parts").fill("2")
    page.locator("#split-form").get_by_role("button", name="Split").click()
    card(page, 4).wait_for()
    now = counts(page)
    assert now[2] + now[4] == start[2] + start[3] and now[2] >= now[4] > 0
    assert len(stored(run)[-1][1]["parts"][0]["regions"]) == now[4]

    tile = card(page, 4).locator(".tile").first
    region = int(tile.get_attribute("data-region"))
    tile.click()
    assert page.locator("#selected").inner_text() == "1 region selected"
    page.locator("#target").select_option("1")
    page.locator("#move").click()
    page.locator(f'.card[data-label="1"] [data-region="{region}"]').wait_for()
    assert counts(page)[1] == start[1] + 1 and page.locator("#selection").is_hidden()
    assert page.locator(f'[data-region="{region}"] .from').inner_text().startswith("was ")
    assert stored(run)[-1][0] == "move" and stored(run)[-1][1]["to"] == 1

    page.locator("#undo").click()
    page.locator(f'.card[data-label="4"] [data-region="{region}"]').wait_for()
    until_counts(page, now)
    assert stored(run)[-1][0] == "undo"

    page.reload()
    page.wait_for_selector('main[aria-busy="false"]')
    assert counts(page) == now and card(page, 1).locator(".name").input_value() == "long scratch"

    card(page, 1).locator(".tile").nth(1).click()
    page.locator("#false-alarm").click()
    card(page, 0).locator(".tile").wait_for()
    page.screenshot(path=tmp_path / "before-apply.png")
    page.locator("#apply").click()
    page.locator("#apply-title", has_text=re.compile("What moved|Not applied")).wait_for(timeout=60_000)
    assert page.locator("#apply-title").inner_text() == "What moved", page.locator("#apply-text").inner_text()
    page.screenshot(path=tmp_path / "applied.png")
    assert page.locator("#moves .group").count() >= 2 and page.locator("#moves img").count() >= 2
    page.locator("#apply-dialog").get_by_role("button", name="Close").click()
    assert page.locator("#apply").is_disabled() and page.locator("#undo").is_disabled()
    assert stored(run)[-1][0] == "applied" and read_names(run)[1] == "long scratch"
    table = read_csv(run / "regions.csv")
    assert counts(page) == {**dict.fromkeys(counts(page), 0), **table["label"].value_counts().to_dict()}
    assert 3 not in set(table["label"]) and (table["label"] == 0).sum() >= 1


def test_everything_goes_by_keyboard(page: Any, address: str, run: Path, tmp_path: Path):
    visit(page, address)
    start = counts(page)
    page.keyboard.press("ArrowRight")
    focused = "document.activeElement.dataset.region ?? document.activeElement.className"
    first = page.evaluate(focused)
    page.keyboard.press("Space")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    assert page.locator("#selected").inner_text() == "3 regions selected"
    page.keyboard.press("f")
    assert len(until_stored(page, run, 1)[-1][1]["regions"]) == 3
    card(page, 0).locator(".tile").first.wait_for()
    assert counts(page)[0] == 3 and first != page.evaluate(focused)
    page.keyboard.press("u")
    until_stored(page, run, 2)
    until(page, "document.querySelectorAll('.card[data-label=\"0\"] .tile').length === 0")
    until_counts(page, start)
    page.keyboard.press("Enter")
    page.locator("#view-dialog[open]").wait_for()
    until(page, "document.getElementById('view-image').naturalWidth >= 800")
    page.screenshot(path=tmp_path / "view.png")
    name = page.locator("#view-title").inner_text()
    page.keyboard.press("ArrowRight")
    assert page.locator("#view-title").inner_text() != name
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    assert page.locator("#help-dialog").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    page.keyboard.type("dent")
    page.keyboard.press("Enter")
    assert until_stored(page, run, 3)[-1][1]["name"] == "dent"
    until(page, "!document.getElementById('undo').disabled")
    page.keyboard.press("/")
    page.keyboard.type("dent")
    until(page, "[...document.querySelectorAll('.card')].filter(c => !c.hidden).length === 1")
    page.keyboard.press("Escape")
    until(page, "[...document.querySelectorAll('.card')].every(c => !c.hidden)")


class Inputs:
    """Counts clicks and keys; letters of names are free."""

    def __init__(self, page: Any) -> None:
        self.page, self.count = page, 0

    def click(self, where: Any) -> None:
        self.count += 1
        where.click()

    def press(self, key: str) -> None:
        self.count += 1
        self.page.keyboard.press(key)


def test_naming_and_correcting_take_few_inputs(page: Any, address: str, run: Path):
    visit(page, address)
    labels = [label for label in counts(page) if label > 0]
    inputs = Inputs(page)
    for label in labels:  # without waiting for an answer
        inputs.click(card(page, label).locator(".name"))
        page.keyboard.type(f"kind number {label}")  # what was there is selected, so it is replaced
        inputs.press("Enter")
    until_stored(page, run, len(labels))
    until(page, "!document.getElementById('undo').disabled")
    assert inputs.count <= 2 * len(labels)
    assert {body["name"] for _, body in stored(run)} == {f"kind number {label}" for label in labels}

    inputs = Inputs(page)
    for place in range(5):
        inputs.click(card(page, labels[0]).locator(".tile").nth(place))
    inputs.count += 1
    page.locator("#target").select_option(str(labels[1]))
    inputs.click(page.locator("#move"))
    assert len(until_stored(page, run, len(labels) + 1)[-1][1]["regions"]) == 5 and inputs.count <= 10


def test_hints_history_and_closer_looks(page: Any, address: str, run: Path, tmp_path: Path):
    visit(page, address)
    start = counts(page)
    first, second = sorted(label for label in start if label > 0)[:2]
    card(page, first).locator(".tile").first.drag_to(card(page, second).locator(".tile").first)
    assert until_stored(page, run, 1)[-1][1]["to"] == second
    until(page, "!document.getElementById('undo').disabled")
    card(page, first).locator(".tile").first.click()
    page.keyboard.press("f")
    until_stored(page, run, 2)
    until(page, "!document.getElementById('undo').disabled")

    page.locator("#history").click()
    page.locator("#history-list li").first.wait_for()
    assert page.locator("#history-list li").count() == 2
    page.screenshot(path=tmp_path / "history.png")
    page.locator("#history-list li").last.get_by_role("button").click()
    assert [kind for kind, _ in until_stored(page, run, 4)][-2:] == ["undo", "undo"]
    until(page, "document.getElementById('undo').disabled")
    until_counts(page, start)

    page.locator("#normal").click()
    page.locator("#normal-images img").first.wait_for()
    page.screenshot(path=tmp_path / "normal.png")
    page.locator("#normal-dialog").get_by_role("button", name="Close").click()

    card(page, first).locator(".tile").first.focus()
    page.keyboard.press("Enter")
    until(page, "document.getElementById('view-image').naturalWidth >= 800")
    page.keyboard.press("+")
    assert "scale(1.5)" in page.locator("#view-image").get_attribute("style")
    page.locator("#view-all").check()
    page.locator("#view-similar").click()
    page.locator("#similar .tile").first.click()
    page.locator("#similar .tile").nth(1).click()
    page.screenshot(path=tmp_path / "similar.png")
    page.locator("#similar-dialog").get_by_role("button", name="Close").click()
    page.locator("#view-dialog").get_by_role("button", name="Close").click()
    assert page.locator("#selected").inner_text() == "2 regions selected"
    page.locator("#beside").click()
    assert page.locator("#beside-pictures figure").count() == 2
    page.screenshot(path=tmp_path / "beside.png")
    page.locator("#beside-dialog").get_by_role("button", name="Close").click()

    page.locator("#clear").click()
    page.locator("#surest").select_option("0.5")
    until(page, "document.querySelectorAll('.tiles[aria-busy]').length === 0")
    sure = read_csv(run / "regions.csv")["probability"]
    until(page, f"document.querySelectorAll('main .tile').length === {int((sure <= 0.5).sum())}")


def test_missed_defects_are_drawn_by_mouse_and_by_keyboard(page: Any, address: str, run: Path, tmp_path: Path):
    visit(page, address)
    before = read_csv(run / "regions.csv")
    page.locator("#normal").click()
    page.locator("#normal-images figure").first.wait_for()
    n_normal = page.locator("#normal-images figure").count()
    page.locator("#normal-images button", has_text="It has a defect").first.click()
    until(page, "document.getElementById('draw-image').naturalWidth > 0")
    assert page.locator("#draw-add").is_disabled()
    drag(page, page.locator("#draw-frame canvas"), (0.25, 0.25), (0.75, 0.5))
    page.locator("#draw-target").select_option("1")
    page.screenshot(path=tmp_path / "draw.png")
    page.locator("#draw-add").click()
    page.locator("#draw-dialog").wait_for(state="hidden")
    kind, body = until_stored(page, run, 1)[-1]
    assert kind == "draw" and body["to"] == 1
    (x0, y0), _, (x1, y1), _ = body["strokes"][0]["points"]
    assert abs(x0 - 0.25) < 0.02 and abs(y0 - 0.25) < 0.02 and abs(x1 - 0.75) < 0.02 and abs(y1 - 0.5) < 0.02
    card(page, 1).locator(".tile .from", has_text="drawn").wait_for()

    page.locator("#normal").click()
    page.locator("#normal-images figure").first.wait_for()
    assert page.locator("#normal-images figure").count() == n_normal - 1
    page.locator("#normal-images button", has_text="It has a defect").first.click()
    until(page, "document.getElementById('draw-image').naturalWidth > 0")
    page.locator("#draw-brush").check()
    drag(page, page.locator("#draw-frame canvas"), (0.2, 0.8), (0.8, 0.8))
    page.locator("#draw-back").click()
    assert page.locator("#draw-add").is_disabled()
    page.locator("#draw-frame canvas").focus()
    for key in ("Enter", "ArrowRight", "Shift+ArrowDown"):
        page.keyboard.press(key)
    page.locator("#draw-add").press("Enter")
    page.locator("#draw-dialog").wait_for(state="hidden")
    assert until_stored(page, run, 2)[-1][1]["to"] == 1

    page.locator("#apply").click()
    page.locator("#apply-title", has_text="What moved").wait_for(timeout=120_000)
    after = read_csv(run / "regions.csv")
    assert len(after) == len(before) + 2 and (after["label"] == 1).sum() >= 2
    drawn = after.merge(before, on=["image", "region"], how="left", indicator=True)
    assert (drawn.loc[drawn["_merge"] == "left_only", "label_x"] == 1).all()


def drag(page: Any, canvas: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw from one place to another, in shares of the canvas."""
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    (x0, y0), (x1, y1) = ((box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end))
    page.mouse.move(x0, y0)
    page.mouse.down()
    page.mouse.move((x0 + x1) / 2, (y0 + y1) / 2, steps=3)
    page.mouse.move(x1, y1, steps=3)
    page.mouse.up()


def test_actions_are_at_hand_in_the_whole_image_and_places_filter(page: Any, address: str, run: Path):
    visit(page, address)
    start = counts(page)
    card(page, 1).locator(".tile").first.press("Enter")
    page.locator("#view-target").select_option("2")
    page.locator("#view-move").click()
    assert until_stored(page, run, 1)[-1][1]["to"] == 2
    page.locator("#view-false-alarm").click()  # enabled again once the next one is shown
    assert until_stored(page, run, 2)[-1][0] == "false_alarm"
    page.keyboard.press("Escape")
    until_counts(page, {**start, 0: start[0] + 1, 1: start[1] - 2, 2: start[2] + 1})
    shown = 0
    for place in ("left", "middle", "right", "top", "bottom"):
        page.locator("#place").select_option(place)
        until(page, "document.querySelectorAll('.tiles[aria-busy]').length === 0")
        shown += page.locator("main .tile").count()
    assert shown >= sum(start.values())


def test_two_windows_see_each_other(page: Any, browser: Any, address: str):
    visit(page, address)
    context = browser.new_context()
    other = context.new_page()
    visit(other, address)
    card(page, 2).locator(".name").fill("hole")
    page.keyboard.press("Enter")
    until(other, "document.querySelector('.card[data-label=\"2\"] .name').value === 'hole'")
    other.locator("#status", has_text="name class 2 “hole”").wait_for(state="attached")
    card(other, 1).locator(".name").fill("HOLE")
    other.keyboard.press("Enter")
    other.locator("#message", has_text="is called “hole” already").wait_for()
    context.close()


def test_names_are_text_and_never_markup(page: Any, address: str, run: Path):
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    visit(page, address)
    name = "<img src=x onerror=alert(1)>"
    card(page, 1).locator(".name").fill(name)
    page.keyboard.press("Enter")
    until_stored(page, run, 1)
    card(page, 2).get_by_role("button", name="Merge").click()
    assert name in page.locator("#merge-choices").inner_text()
    assert page.locator('img[src="x"]').count() == 0 and not asked


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_the_screen(browser: Any, address: str, tmp_path: Path, width: int, scheme: str):
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page = context.new_page()
    visit(page, address)
    page.locator(".tile").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=tmp_path / f"review-{width}-{scheme}.png")
    context.close()


def test_the_report_opens_offline(page: Any, run: Path, tmp_path: Path):
    write_report = pytest.importorskip("anomalyncd.report.html").write_report
    write_report(FinishedRun(run))
    page.context.set_offline(True)
    page.goto((run / "report.html").as_uri())
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    text = page.locator("body").inner_text()
    for name in set(read_csv(run / "images.csv")["class_name"]):
        assert name in text
    page.screenshot(path=tmp_path / "report.png")
