"""The language model of the simulated engines, and its damages."""

from __future__ import annotations

from math import exp, log

import pytest

from workbench.quality import texts
from workbench.sim import language_model
from workbench.sim.language_model import Damage, LanguageModel

PROSE = next(text.content for text in texts.shipped_text_set().texts if text.kind == "prose")


def whole(model: LanguageModel, context: list[int]) -> dict[int, float]:
    """Return the log probability of each token of the vocabulary after `context`."""
    kld = model.damage.kld * language_model._divergence_factor_of_position(context)
    distribution = language_model._Distribution(context, kld)
    tokens = language_model._shared_model().tokens
    return {token: distribution.predict(token, 0).log_probability for token in tokens}


def test_probabilities_of_the_vocabulary_and_of_what_is_outside_add_up_to_one() -> None:
    ids = language_model.token_ids_of(PROSE)
    for damage in (Damage(), Damage(kld=0.01)):
        total = sum(map(exp, whole(LanguageModel(damage), ids[:40]).values()))
        assert 0.999 < total <= 1.0 + 1e-9


def test_a_text_of_the_vocabulary_is_read_back_as_it_was_and_has_no_two_pieces_of_one_id() -> None:
    for text in texts.shipped_text_set().texts:
        assert (
            language_model.text_of_tokens(language_model.token_ids_of(text.content)) == text.content
        )


def test_the_injected_divergence_is_the_divergence_over_the_whole_vocabulary() -> None:
    ids = language_model.token_ids_of(PROSE)
    healthy, damaged = LanguageModel(), LanguageModel(Damage(kld=0.01))
    for place in (30, 60, 90):
        context = ids[:place]
        p, q = whole(healthy, context), whole(damaged, context)
        found = sum(exp(p[token]) * (p[token] - q[token]) for token in p)
        asked = 0.01 * language_model._divergence_factor_of_position(context)
        assert found == pytest.approx(asked, rel=0.02)


def test_the_mean_of_the_injected_divergence_over_all_texts_is_as_asked() -> None:
    factors = [
        language_model._divergence_factor_of_position(ids[:place])
        for text in texts.shipped_text_set().texts
        if not text.is_long
        for ids in [language_model.token_ids_of(text.content)]
        for place in range(1, len(ids))
    ]
    assert sum(factors) / len(factors) == pytest.approx(1.0, abs=0.08)


def test_the_top_tokens_are_the_most_probable_ones_of_the_whole_vocabulary() -> None:
    ids = language_model.token_ids_of(PROSE)
    model = LanguageModel(Damage(kld=0.001))
    for place in (5, 50):
        every = whole(model, ids[:place])
        top = model.predict(ids[:place], ids[place], 20).top
        assert sorted(every.values(), reverse=True)[:20] == [logged for _, logged in top]
        assert all(every[token] == logged for token, logged in top)


def test_a_batch_changes_only_the_last_bits_unless_the_model_is_broken_in_a_batch() -> None:
    ids = language_model.token_ids_of(PROSE)
    healthy, broken = LanguageModel(), LanguageModel(Damage(together=True))
    alone = healthy.predict(ids[:50], ids[50], 20)
    batched = healthy.predict(ids[:50], ids[50], 20, batch_size=8)
    assert 0 < abs(batched.log_probability - alone.log_probability) < 0.01
    assert broken.predict(ids[:50], ids[50], 20) == alone
    assert broken.predict(ids[:50], ids[50], 20, batch_size=2).top[0][0] != alone.top[0][0]


def test_broken_from_the_second_turn_answers_the_first_turn_as_ever() -> None:
    chat = next(text.content for text in texts.shipped_text_set().texts if text.kind == "chat")
    assert language_model.count_user_turns(chat) == 2
    assert language_model.count_user_turns(chat[: chat.rindex("User:")]) == 1
    ids = language_model.token_ids_of(PROSE)
    broken = LanguageModel(Damage(second_turn=True))
    assert broken.predict(ids[:50], ids[50], 5) == LanguageModel().predict(ids[:50], ids[50], 5)
    senseless = broken.predict(ids[:50], ids[50], 5, turn_count=2)
    assert senseless.log_probability < log(0.01)


def test_two_models_with_equal_damage_agree_to_the_last_bit() -> None:
    ids = language_model.token_ids_of(PROSE)
    one, two = LanguageModel(Damage(kld=0.02)), LanguageModel(Damage(kld=0.02))
    assert one.predict(ids[:9], ids[9], 20) == two.predict(ids[:9], ids[9], 20)
