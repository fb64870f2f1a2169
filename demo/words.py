"""The names and the pools of words of what is said between facts, whose slots filler.py fills from them."""

from __future__ import annotations

FEMALE: tuple[str, ...] = tuple(
    "Anna Clara Emma Julia Laura Maria Nina Olga Paula Rita Sara Tina Vera Wanda Alice Diana Elena Flora "
    "Greta Hanna Irene Karin Linda Marta Nora Petra Sofia Thea Ursula Zoe".split()
)
MALE: tuple[str, ...] = tuple(
    "Adam Ben Carl David Erik Frank George Hugo Ivan Jack Karl Leo Martin Nils Oliver Paul Peter Ralph "
    "Simon Thomas Victor Walter Albert Daniel Henry Jonas Lukas Max Otto Robert".split()
)
NAMES: tuple[str, ...] = FEMALE + MALE
PRONOUNS = (
    {"he": "she", "He": "She", "his": "her", "His": "Her", "him": "her"},
    {"he": "he", "He": "He", "his": "his", "His": "His", "him": "him"},
)


def _pool(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


POOLS: dict[str, tuple[str, ...]] = {
    "who": NAMES,
    "fruit": _pool("apples, pears, plums, cherries, grapes, lemons, figs, peaches, strawberries, melons"),
    "vegetable": _pool(
        "onions, carrots, potatoes, leeks, beans, tomatoes, cabbages, mushrooms, turnips, peas"
    ),
    "food": _pool("bread, cheese, soup, rice, fish, butter, honey, cake, salad, porridge"),
    "drink": _pool("tea, coffee, milk, water, cocoa, lemonade, juice, cider"),
    "animal": _pool(
        "dog, cat, horse, goat, duck, goose, sheep, donkey, rabbit, fox, hen, pony, cow, mouse, gull, crow"
    ),
    "thing": _pool(
        "basket, blanket, candle, ribbon, spoon, lamp, button, book, hat, scarf, clock, box, bottle, brush, "
        "coat, key"
    ),
    "gadget": _pool("clock, lamp, box, chair, table, drum, wheel, door, cart, bench, violin, toy"),
    "things": _pool(
        "baskets, blankets, candles, ribbons, spoons, lamps, buttons, books, hats, scarves, boxes, bottles"
    ),
    "colour": _pool("red, blue, green, yellow, brown, black, white, grey, purple, pink"),
    "size": _pool("small, large, tiny, huge, big, simple, strange, fine, lovely, wonderful"),
    "mood": _pool("happy, tired, proud, calm, cheerful, curious, hungry, surprised, quiet, nervous"),
    "kind": _pool("wise, young, friendly, patient, clever, shy, busy, strong, gentle, funny"),
    "worker": _pool(
        "baker, farmer, teacher, sailor, doctor, painter, miller, gardener, cook, guard, driver, tailor"
    ),
    "place": _pool(
        "the market, the harbour, the mill, the library, the school, the station, the church, the bridge, "
        "the bakery, the castle, the river, the square, the inn, the museum, the theatre, the park, the "
        "lighthouse, the forest"
    ),
    "room": _pool(
        "the kitchen, the hall, the attic, the cellar, the garden, the bedroom, the barn, the yard"
    ),
    "furniture": _pool("table, shelf, bench, window, door, stove, chair, cupboard, stairs, fireplace"),
    "city": _pool(
        "Rome, Paris, London, Berlin, Madrid, Vienna, Prague, Oslo, Lisbon, Dublin, Athens, Hamburg, Venice"
    ),
    "weekday": _pool("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "month": _pool(
        "January, February, March, April, May, June, July, August, September, October, November, December"
    ),
    "season": _pool("spring, summer, autumn, winter"),
    "daytime": _pool("morning, afternoon, evening"),
    "number": _pool("two, three, four, five, six, seven, eight, nine, ten, eleven, twelve"),
    "weather": _pool("sunny, rainy, windy, foggy, cloudy, cold, warm, stormy, snowy, mild"),
    "sky": _pool("dark, bright, grey, clear, pale, heavy"),
    "wind": _pool("north, south, east, west"),
    "flower": _pool("roses, tulips, daisies, lilies, violets, poppies, sunflowers"),
    "tree": _pool("birch, pine, beech, willow, linden, cherry tree, chestnut, walnut tree"),
    "herb": _pool("basil, mint, parsley, dill, thyme, sage, rosemary"),
    "tool": _pool("hammer, saw, file, knife, drill, plane, brush, screwdriver"),
    "material": _pool("wood, iron, glass, leather, copper, clay, stone, paper"),
    "ship": _pool("boat, ship, ferry, barge"),
    "lesson": _pool("history, geography, music, drawing, reading, physics, biology"),
    "sound": _pool("a bell, a whistle, a song, a knock, laughter, footsteps, a drum, thunder"),
    "family": _pool("sister, brother, mother, father, uncle, aunt, cousin, grandmother, grandfather"),
    "weekly": _pool("every day, every week, every Sunday, twice a week, once a month, every morning"),
    "game": _pool("chess, cards, football, tennis, hide and seek"),
    "speed": _pool("slowly, quickly, quietly, carefully, patiently, calmly"),
    "kind_an": ("old", "elderly", "honest"),
    "worker_any": ("sailor", "baker", "teacher", "miller", "lady", "man"),
    "thing_any": ("key", "coin", "spoon", "ring", "bottle", "knife"),
    "furniture_any": ("table", "shelf", "bench", "stairs", "chair"),
    "side": ("left", "right"),
}
