"""Finding a way in the flags and words of the screen, on the real session of a simulated host."""

from __future__ import annotations

import pytest
from support.real_screen import RealScreen, shown


async def in_launch(s: RealScreen) -> None:
    await s.load()
    await s.press("2")


@pytest.mark.slow
def test_all_flags_are_in_groups_and_keys_jump_between_them() -> None:
    async def scenario(s: RealScreen) -> None:
        await in_launch(s)
        launch = s.pane("launch")
        await s.press("a")
        await s.until("most used", lambda: launch.current_item.name == "model")
        await s.press("n", "n")
        await s.until("parallelism", lambda: launch.current_item.spec.area == "parallelism")
        await s.press("B")
        await s.until(lambda: launch.current_item.spec.area == "model")
        await s.press("o")
        await s.until("Groups of flags")
        await s.press(*"specul", "enter")
        await s.until(
            "speculative decoding", lambda: launch.current_item.spec.area == "speculative decoding"
        )

    shown(scenario)


@pytest.mark.slow
def test_the_cursor_passes_over_headings() -> None:
    async def scenario(s: RealScreen) -> None:
        await in_launch(s)
        launch = s.pane("launch")
        await s.press("a", "home")
        seen = []
        for _ in range(30):
            seen.append(launch.current_item.name)
            await s.press("down")
        assert len(set(seen)) == 30
        await s.press("home")
        await s.until(lambda: launch.cursor == 1, "most used")

    shown(scenario)


def test_a_group_is_found_by_its_name() -> None:
    async def scenario(s: RealScreen) -> None:
        await in_launch(s)
        await s.press("slash", *"network")
        await s.until("ssl-keyfile")
        names = [row.name for row in s.pane("launch").items]
        assert {"host", "port", "api-key"} <= set(names)

    shown(scenario)


def test_the_editor_shows_the_document_and_the_estimate_while_typing() -> None:
    async def scenario(s: RealScreen) -> None:
        await in_launch(s)
        await s.press("slash", *"gpu-memory")
        await s.until("/gpu-memory")
        await s.press("enter")
        await s.until(
            "preset: --gpu-memory-utilization 0.9",
            "caveat: Weights",
            "est. memory per GPU 36.0 of 40.0 GiB",
        )
        await s.press(*"0.5")
        await s.until("36.0 > 20.0 of 40.0 GiB")
        await s.press("backspace", "x")
        await s.until("is not a number", lambda: "36.0 > " not in s.text)
        await s.press("escape")
        await s.press("slash", *"eager", "enter")
        await s.until("est. memory per GPU", "off  (default)")

    shown(scenario)


def test_an_empty_text_removes_a_flag_and_an_unchanged_one_keeps_it() -> None:
    """An empty text became `--kv-cache-dtype ''`, and the box rounded numbers and split lists."""

    async def scenario(s: RealScreen) -> None:
        await in_launch(s)
        plans, launch = s.session.plans, s.pane("launch")
        kept = {
            "gpu-memory-utilization": "0.8123456789",
            "api-server-count": "1",
            "lora-modules": "'a=/one path' b=/two",
        }
        for name, text in kept.items():
            plans.set_flag(name, text)
        before = plans.editor.plan
        for name in kept:
            launch.select_item((False, name))
            await s.press("enter")
            await s.until("ctrl+r remove from the plan")
            await s.press("enter")
            await s.until(lambda: "ctrl+r remove from the plan" not in s.text)
        assert plans.editor.plan == before
        launch.select_item((False, "api-server-count"))
        await s.press("enter")
        await s.until("ctrl+r remove from the plan")
        await s.press("backspace", "enter")
        await s.until(lambda: plans.editor.plan.flag("api-server-count") is None)
        launch.select_item((False, "model"))
        await s.press("enter")
        await s.until("ctrl+r remove from the plan")
        await s.press("backspace", "enter")
        await s.until("the model cannot be removed from a plan")
        await s.press("ctrl+r")
        await s.until("the model cannot be removed from a plan")

    shown(scenario)


@pytest.mark.parametrize("key", ["question_mark", "f1"])
def test_question_mark_explains_a_flag_and_then_lists_the_keys(key: str) -> None:
    async def scenario(s: RealScreen) -> None:
        await in_launch(s)
        await s.press("a")
        s.pane("launch").select_item((False, "max-num-seqs"))
        await s.press("question_mark")
        await s.until(
            "Terms on the screen", "Most sequences decoded in one step", "group     batching"
        )
        await s.press(key)
        await s.until("Keys", "pick a preset: type letters")
        await s.press("escape")
        await s.until(lambda: "pick a preset: type letters" not in s.text)

    shown(scenario)


def test_question_mark_explains_the_words_of_a_pane() -> None:
    async def scenario(s: RealScreen) -> None:
        await in_launch(s)
        await s.press("6")
        await s.until("P-state")
        await s.press("question_mark")
        await s.until("Words of GPUs", "the performance state of the GPU")

    shown(scenario)


@pytest.mark.slow
def test_a_word_is_explained_by_name_from_the_palette() -> None:
    async def scenario(s: RealScreen) -> None:
        await in_launch(s)
        await s.press("colon")
        await s.until("Actions")
        await s.press(*"Explain a word")
        await s.until(lambda: "Explain a word" in s.text)
        await s.press("enter")
        await s.until("baseline")
        await s.press(*"ttft", "enter")
        await s.until("Explanation", "time to first token")

    shown(scenario)


def test_the_footer_shows_what_the_situation_needs() -> None:
    async def scenario(s: RealScreen) -> None:
        await s.resize(80, 24)
        await s.until(lambda: s.row(23).startswith(" p Preset"))
        await in_launch(s)
        await s.until(
            lambda: s.row(23).startswith(" s Start  enter edit  a all  o group  ? Explain")
        )

    shown(scenario)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_a_key_applies_the_fix_of_a_finding_and_another_undoes_it(size: tuple[int, int]) -> None:
    async def scenario(s: RealScreen) -> None:
        await in_launch(s)
        launch = s.pane("launch")
        await s.until(lambda: any(f.code == "dp-before-tp" for f in s.state.plan.findings))
        before = s.state.plan.plan.flags
        await s.press("f")  # the cursor is on a flag without a finding: the key asks
        await s.until("Fix which finding?", "--unset tensor-parallel-size")
        await s.press("escape")
        launch.select_item((False, "tensor-parallel-size"))
        await s.press("f")
        await s.until(
            "press u to undo", lambda: "--data-parallel-size 4" in s.state.plan.shell_command()
        )
        assert "tensor-parallel-size" not in s.state.plan.shell_command()
        assert not any(f.code == "dp-before-tp" for f in s.state.plan.findings)
        await s.press("u")
        await s.until(lambda: s.state.plan.plan.flags == before)

    shown(scenario, size=size)
