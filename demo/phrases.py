"""The words of what is said between facts: names, pools of words, sentences of stories, small talk.

A sentence is a format string; filler.py fills its slots from POOLS. "%(fruit2)s" is another draw from the
pool "fruit" that differs from "%(fruit)s". Nothing here says what a fact says: no sentence has the form
"Anna's code is 7281."
"""

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

Style = tuple[tuple[str, ...], ...]

# Each style has four phases; a story takes sentences from them in their order.
STYLES: dict[str, Style] = {
    "the market": (
        (
            "On %(weekday)s %(p)s went to the market with a %(size)s basket.",
            "The market opened early, and %(p)s was among the first to come.",
            "It was a %(weather)s %(daytime)s when %(p)s walked to the market.",
            "%(p)s wanted to buy %(fruit)s and %(vegetable)s before noon.",
            "Every stall was full, and people came from all the villages.",
            "%(p)s had promised to bring home some %(food)s.",
        ),
        (
            "A %(kind)s woman sold %(fruit)s from a %(colour)s cart.",
            "%(He)s asked for %(number)s %(fruit)s and a bag of %(vegetable)s.",
            "The %(worker)s behind the stall weighed the %(vegetable)s twice.",
            "Next to the well somebody was selling %(things)s.",
            "%(He)s tasted a piece of %(food)s and smiled.",
            "The smell of fresh %(food)s filled the square.",
            "A boy called out that the %(fruit2)s were cheap today.",
            "%(q)s stood in the row behind %(him)s and waited.",
        ),
        (
            "Then a %(animal)s ran between the stalls and everybody laughed.",
            "%(p)s met %(q)s near the %(things)s, and they talked for a while.",
            "Suddenly the wind blew a %(colour2)s hat across the square.",
            "A %(thing)s fell to the ground, but nothing broke.",
            "%(q)s had forgotten the money, so %(p)s paid for both.",
            "%(q)s wanted to know where the best %(vegetable2)s were.",
        ),
        (
            "At noon the sellers packed their boxes and went home.",
            "%(p)s carried everything home and made a %(size2)s meal.",
            "In the end %(he)s had more %(fruit)s than %(he)s could carry.",
            "%(He)s gave %(number2)s of the %(fruit)s to %(q)s.",
            "Soon the square was empty and quiet again.",
        ),
    ),
    "the weather": (
        (
            "The day began %(weather)s, and the sky was %(sky)s.",
            "In %(month)s the weather changes quickly in this valley.",
            "A wind from the %(wind)s had blown all night.",
            "It was the %(weather)s part of %(season)s.",
            "%(p)s looked out of the window and saw %(sky)s clouds.",
        ),
        (
            "By noon the rain had reached the hills.",
            "Drops ran down the glass, and the street shone like silver.",
            "The %(animal)s stayed in the barn and did not move.",
            "Snow lay on the roofs, and the river was covered with ice.",
            "The sun was so warm that %(p)s left %(his)s coat at home.",
            "Fog came up from the river and hid the %(tree)s.",
            "The clouds were %(sky2)s, but no rain fell.",
        ),
        (
            "Then %(p)s heard thunder behind the mountains.",
            "A storm broke a branch of the %(tree)s in front of the church.",
            "%(p)s ran home and met %(q)s on the way, wet from head to foot.",
            "For a moment a rainbow stood over the fields.",
            "%(q)s opened an umbrella, but the wind turned it inside out.",
            "The road to %(place)s was under water.",
        ),
        (
            "In the %(daytime)s the wind fell and the stars came out.",
            "The next morning was %(weather2)s again.",
            "%(p)s made some %(drink)s and waited for better days.",
            "The farmers were glad, because the fields had needed the rain.",
            "After the storm the air was fresh and clean.",
        ),
    ),
    "a journey": (
        (
            "In %(month)s %(p)s travelled to %(city)s by train.",
            "%(p)s packed a %(size)s bag and left the house at dawn.",
            "The journey from %(city2)s to %(city)s took %(number)s hours.",
            "%(p)s had never been to %(city)s before.",
            "Early on %(weekday)s %(p)s stood on the platform with a %(thing)s under %(his)s arm.",
        ),
        (
            "The train was full, and %(he)s sat next to a %(kind)s %(worker)s.",
            "Fields and villages went past the window.",
            "%(He)s read a book and drank some %(drink)s.",
            "At every station people got on and off.",
            "A child with a %(colour)s %(thing2)s looked at %(him)s all the time.",
            "They crossed a long bridge, and below them lay a river.",
            "The %(worker)s told a story about %(city2)s.",
        ),
        (
            "In the middle of the forest the train stopped for an hour.",
            "%(p)s lost the ticket and found it again in %(his)s coat.",
            "On the platform of a small town %(he)s met %(q)s.",
            "Somebody had taken the wrong bag, and everybody had to search.",
            "%(q)s knew a shorter way and showed it to %(p)s on a map.",
            "There was no bridge, so they had to take the ferry.",
        ),
        (
            "When %(p)s arrived in %(city)s, the lamps were already burning.",
            "%(He)s found a room at the inn and slept until noon.",
            "From the tower %(he)s could see the whole city.",
            "%(p)s wrote a card to %(q)s on the same evening.",
            "It was a long way, but %(p)s was %(mood)s.",
            "After %(number2)s days %(he)s went home again.",
        ),
    ),
    "the kitchen": (
        (
            "%(p)s wanted to cook something special for %(q)s.",
            "The kitchen was warm, and water boiled on the stove.",
            "On %(weekday)s evening %(p)s stood in the kitchen.",
            "There were only %(vegetable)s and some %(food)s in the house.",
            "%(p)s put on an apron and washed %(his)s hands.",
        ),
        (
            "First %(he)s cut the %(vegetable)s into thin slices.",
            "%(He)s put the %(vegetable)s into a %(size)s pot and added salt.",
            "Then %(he)s mixed flour, eggs and milk in a bowl.",
            "The recipe asked for %(number)s spoons of butter.",
            "%(q)s peeled the %(fruit)s and ate one of them.",
            "A little %(herb)s made the soup taste much better.",
            "%(He)s stirred the pot %(speed)s so that nothing burned.",
        ),
        (
            "Then the lid fell down with a loud noise.",
            "The %(animal)s came in and looked at the fish.",
            "%(p)s had forgotten the salt, but %(q)s noticed it in time.",
            "For a moment the kitchen was full of smoke.",
            "There was no %(drink)s left, so %(q)s went to the shop.",
            "The cake was too big for the oven.",
        ),
        (
            "At last they sat down and ate.",
            "%(q)s asked for a second plate.",
            "After the meal they drank %(drink2)s and washed the dishes.",
            "Everybody said that the %(food)s tasted wonderful.",
            "%(p)s wrote the recipe down so that %(he)s would not forget it.",
            "The rest was given to the neighbours.",
        ),
    ),
    "the harbour": (
        (
            "At dawn %(number)s boats came into the harbour.",
            "%(p)s worked at the harbour and knew every %(ship)s.",
            "The %(ship)s from %(city)s was late again.",
            "A %(colour)s %(ship)s lay at the pier and moved in the waves.",
            "%(p)s liked to sit on the wall and look at the sea.",
        ),
        (
            "Sailors carried boxes of %(fruit)s and %(things)s to the shore.",
            "Gulls flew around the masts and cried.",
            "The captain was a %(kind)s man with a %(size)s beard.",
            "%(p)s helped to tie the rope to the ring.",
            "The air smelled of salt, fish and tar.",
            "An old sailor sat on a barrel and mended a net.",
            "The crane lifted a %(size2)s box out of the %(ship)s.",
        ),
        (
            "Suddenly a rope broke and a box fell into the water.",
            "%(q)s came running with a letter for the captain.",
            "Nobody knew who owned the %(thing)s on the deck.",
            "A %(animal)s had crossed the whole sea between the boxes.",
            "A wave came over the wall, and %(p)s got wet feet.",
            "The fog was so thick that the lighthouse could not be seen.",
        ),
        (
            "In the evening the %(ship)s left for %(city2)s.",
            "%(p)s waved until the sail was gone.",
            "The lighthouse sent its light over the dark water.",
            "%(p)s and %(q)s ate fried fish at the inn.",
            "At high tide all the boats were back.",
        ),
    ),
    "the school": (
        (
            "School began at eight, and %(p)s was nearly late.",
            "On %(weekday)s the class had a %(lesson)s lesson.",
            "%(p)s sat in the first row next to %(q)s.",
            "The new teacher came from %(city)s and spoke %(speed)s.",
            "It was the last week of school before the %(season)s holidays.",
        ),
        (
            "The teacher wrote %(number)s words on the board.",
            "%(p)s read a page aloud, and the others listened.",
            "They learned how a %(animal)s lives and what it eats.",
            "Everybody had to draw a map with hills and rivers.",
            "%(q)s knew the answer but did not dare to say it.",
            "For the next lesson they had to bring a %(thing)s.",
            "The teacher explained it again, and now %(p)s understood.",
        ),
        (
            "Then a %(animal2)s flew, ran or jumped past the window, and nobody listened any more.",
            "In the break they played %(game)s in the yard.",
            "%(p)s lost a pencil and %(q)s lent %(him)s one.",
            "A window stood open, and the wind took all the papers.",
            "%(q)s had brought %(fruit)s for everybody.",
            "The bell rang too early, and nobody knew why.",
        ),
        (
            "After school %(p)s and %(q)s walked home together.",
            "%(p)s did the homework at once and was %(mood)s.",
            "The teacher praised them all.",
            "In the evening %(p)s told %(his)s %(family)s about it.",
            "They agreed to meet at %(place)s on %(weekday2)s.",
        ),
    ),
    "the garden": (
        (
            "Behind the house there was a garden with a %(tree)s.",
            "In %(season)s %(p)s worked in the garden %(weekly)s.",
            "%(p)s planted %(flower)s along the wall.",
            "The garden belonged to an %(kind_an)s %(worker_any)s who knew every plant.",
            "%(p)s got up early to water the %(flower)s.",
        ),
        (
            "The %(flower)s were %(colour)s and smelled sweet.",
            "Between the %(vegetable)s grew a little %(herb)s.",
            "Bees flew from one flower to the next.",
            "%(He)s pulled out the weeds and carried them away.",
            "The %(fruit)s were not ripe yet, but the birds liked them.",
            "%(q)s brought a can of water from the well.",
            "%(p)s dug a hole for a young %(tree)s.",
        ),
        (
            "Under a stone %(he)s found an old %(thing_any)s.",
            "A %(animal)s came through the fence and ate the %(vegetable)s.",
            "Rain began, and they sat down under the %(tree)s.",
            "%(q)s fell asleep in the grass.",
            "Something moved in the leaves, but it was only a %(animal2)s.",
            "The gate stood open, and nobody knew who had opened it.",
        ),
        (
            "In the evening they sat on the bench and ate %(fruit)s.",
            "%(p)s gave %(q)s a bunch of %(flower)s.",
            "A few weeks later everything was green.",
            "In %(month)s they picked %(number)s baskets of %(fruit)s.",
            "%(p)s was %(mood)s and washed %(his)s hands at the well.",
        ),
    ),
    "the workshop": (
        (
            "%(p)s had a small workshop near %(place)s.",
            "In the workshop it smelled of %(material)s and oil.",
            "A customer brought a broken %(gadget)s to the workshop.",
            "%(p)s was building a %(size)s box of %(material)s.",
            "Early in the %(daytime)s %(p)s lit the lamp in the workshop.",
        ),
        (
            "%(He)s took the %(tool)s from the wall and began to work.",
            "The %(tool2)s was not sharp enough.",
            "%(He)s measured everything twice and cut it once.",
            "%(q)s held the lamp and handed %(him)s the nails.",
            "Dust danced in the light of the window.",
            "The work needed patience and a steady hand.",
            "%(He)s turned the screw %(speed)s until it was tight.",
        ),
        (
            "Then the %(tool)s broke in two.",
            "%(p)s found a coin inside the %(gadget)s.",
            "One piece was too short, and %(he)s had to start again.",
            "%(q)s told a joke, and the %(tool2)s fell to the floor.",
            "A %(kind)s %(worker)s came in and asked for the way to %(place2)s.",
            "There were no nails left in the %(colour)s box.",
        ),
        (
            "On %(weekday)s the %(gadget)s was as good as new.",
            "The customer paid %(number)s coins and was %(mood)s.",
            "%(p)s swept the floor and closed the door.",
            "%(q)s learned a lot on that day.",
            "In the window stood a new sign with %(colour2)s letters.",
        ),
    ),
    "a letter": (
        (
            "On %(weekday)s a letter from %(city)s arrived for %(p)s.",
            "%(p)s sat down to write a letter to %(q)s.",
            "The postman brought %(number)s letters and a parcel.",
            "There was a letter without a name on the %(furniture_any)s.",
            "%(p)s had waited for the letter since %(month)s.",
        ),
        (
            "The paper was thin, and the ink was %(colour)s.",
            "%(q)s wrote that the %(season)s in %(city)s was %(weather)s.",
            "The letter told of a %(animal)s that could open doors.",
            "%(q)s sent greetings to the whole family.",
            "The first page was about %(fruit)s, the second about the sea.",
            "There was also a picture of %(place)s.",
            "%(p)s read the letter twice and then once more.",
        ),
        (
            "One line could not be read, because water had run over it.",
            "At the end there was a question that %(p)s could not answer.",
            "A dry leaf of a %(tree)s fell out of the letter.",
            "The letter had been in the wrong box for %(number2)s weeks.",
            "%(q)s wanted to come for a visit in %(month2)s.",
            "The second page was missing.",
        ),
        (
            "%(p)s wrote back on the same %(daytime)s.",
            "%(He)s put the letter into a %(colour2)s box with all the others.",
            "Then %(he)s bought a stamp and walked to the post office.",
            "%(p)s was %(mood)s for the rest of the day.",
            "A few days later the answer was on its way.",
        ),
    ),
    "the village": (
        (
            "In the village everybody knew %(p)s.",
            "Once a year the village had a feast near %(place)s.",
            "%(p)s lived in the last house of the village, next to a %(tree)s.",
            "It was a quiet %(daytime)s in the village.",
            "On %(weekday)s the people met at the well.",
        ),
        (
            "The %(worker)s brought %(food)s, and the %(worker2)s brought %(drink)s.",
            "Children ran down the street after a %(animal)s.",
            "%(q)s played the violin, and some people danced.",
            "An old man told how the bridge had been built.",
            "Smoke rose from the chimneys into the %(sky)s sky.",
            "The %(worker)s repaired the roof with %(p)s.",
            "From far away they heard %(sound)s.",
        ),
        (
            "Then the bell rang, and all came out of their houses.",
            "The %(animal)s of the %(worker)s was gone, and everybody searched for it.",
            "A stranger with a %(colour)s %(thing)s came over the bridge.",
            "%(p)s found the key that %(q)s had lost in %(season)s.",
            "%(q)s and the %(worker2)s had a quarrel about %(number)s hens.",
            "At midnight the lights went out.",
        ),
        (
            "In the end they all laughed about it.",
            "The %(worker)s thanked %(p)s and gave %(him)s a %(thing)s.",
            "They sat together until the moon was high.",
            "On the next day nobody spoke of it any more.",
            "%(p)s went home %(mood)s and slept well.",
        ),
    ),
}


LINKS = (
    "",
    "",
    "",
    "Some time later something else happened.",
    "The next story begins elsewhere.",
    "On another day it was like this.",
    "Not far away there was more to see.",
    "A week went by.",
    "That was not all.",
)

# (what the user says, what the assistant says); both share their slots.
CHATTER: tuple[tuple[str, str], ...] = (
    ("Hello.", "Hello. How are you today?"),
    ("Hi.", "Hello. It is good to hear from you."),
    ("Hey.", "Hello. What can I do for you?"),
    ("Thanks.", "You are welcome."),
    ("Okay.", "Good. Tell me when you need something."),
    ("Yes.", "Very well. What shall we talk about?"),
    ("No.", "All right. Then let us talk about something else."),
    ("Goodbye.", "Goodbye. I will remember what you told me."),
    ("Bye.", "Goodbye. Come back soon."),
    ("What is your name?", "I am called Mneme. I am a small model with a long memory."),
    ("Can you help me?", "I can remember what you tell me, and I can tell little stories."),
    ("I have a question.", "Go on, please. I will answer if I can."),
    ("Good %(daytime)s.", "Good %(daytime)s. What can I do for you?"),
    ("Who are you?", "I am a small model with a long memory. I remember what you tell me."),
    ("What can you do?", "I remember what you tell me, and I can tell little stories."),
    ("How are you?", "I am well, thank you. It is a %(weather)s day, and I like to talk with you."),
    ("Thank you very much.", "You are welcome. I am glad that I could help."),
    ("That was very kind of you.", "It was a pleasure. Just ask me again when you need something."),
    ("I am %(mood)s today.", "Thank you for telling me. I hope that the day will be good for you."),
    ("It is %(weather)s outside.", "Then it may be a good day for a cup of %(drink)s and a book."),
    (
        "What should I wear when it is %(weather)s?",
        "On a %(weather)s day I would take a %(colour)s coat and good shoes. A scarf may help as well.",
    ),
    (
        "How do I make soup with %(vegetable)s?",
        "Cut the %(vegetable)s into small pieces and boil them with salt and a little %(herb)s. After half "
        "an hour the soup is ready.",
    ),
    (
        "How can I keep %(herb)s fresh?",
        "Put the %(herb)s into a glass of water, or wrap it in a damp cloth. It will stay fresh for some "
        "days.",
    ),
    (
        "What can I bake with %(fruit)s?",
        "You can bake a cake. Mix flour, eggs, butter and sugar, put the %(fruit)s on top and bake it until "
        "it is brown.",
    ),
    (
        "When should I plant %(flower)s?",
        "The best time for %(flower)s is spring. They need sun, good soil and water %(weekly)s.",
    ),
    (
        "How do I get from %(place)s to %(place2)s?",
        "Walk past %(place)s and then turn %(side)s. After %(number)s minutes you will see %(place2)s in "
        "front of you.",
    ),
    (
        "Should I visit %(city)s or %(city2)s?",
        "Both are worth a visit. In %(season)s I would go to %(city)s, and in %(month)s to %(city2)s.",
    ),
    (
        "My %(animal)s does not want to eat.",
        "Give it fresh water and some rest. If it does not eat tomorrow, you should ask a doctor for "
        "animals.",
    ),
    (
        "I saw a %(colour)s %(animal)s near %(place)s.",
        "A %(colour)s %(animal)s is a rare sight. I wonder where it came from.",
    ),
    (
        "Today I bought a %(size)s %(thing)s.",
        "That sounds nice. A %(size)s %(thing)s is useful in every house. Where will you put it?",
    ),
    (
        "I will put the %(thing)s on the %(furniture_any)s.",
        "That is a good place for a %(thing)s. You will always find it there.",
    ),
    (
        "How do I clean a %(colour)s %(thing)s?",
        "Use warm water and a soft cloth, and work %(speed)s. Let the %(thing)s dry before you use it again.",
    ),
    (
        "Can you give me some advice for my garden?",
        "Plant %(vegetable)s next to %(flower)s, and water them in the morning. Pull out the weeds "
        "%(weekly)s.",
    ),
    (
        "What do I need to repair a %(gadget)s?",
        "You need a %(tool)s, a little glue and much patience. Do not forget to clean the %(tool)s "
        "afterwards.",
    ),
    (
        "Which %(tool)s should I buy?",
        "Take one with a good handle. A %(tool)s that lies well in the hand is worth its money.",
    ),
    (
        "What do you know about %(season)s?",
        "In %(season)s the days change, and so do the colours of the trees. Many people like to walk in the "
        "forest then.",
    ),
    (
        "I cannot sleep.",
        "Drink a cup of warm milk, open the window and think of %(place)s on a %(weather)s %(daytime)s.",
    ),
    (
        "Shall we play a game?",
        "Gladly. Think of an animal, and I will guess. Is it a %(animal)s? Or perhaps a %(animal2)s?",
    ),
    (
        "It was a %(animal)s.",
        "Then I was lucky. A %(animal)s is easy to guess, because many people like it.",
    ),
    (
        "I have to travel to %(city)s on %(weekday)s.",
        "Have a good journey. Take the early train, and bring a book and something to drink with you.",
    ),
    (
        "The train to %(city)s was late.",
        "I am sorry to hear that. I hope that you had something to read while you waited.",
    ),
    (
        "My %(family)s will visit me on %(weekday)s.",
        "How nice. You could bake a cake with %(fruit)s and make some %(drink)s.",
    ),
    (
        "What can I give my %(family)s as a present?",
        "A %(colour)s %(thing)s would be nice, or a bunch of %(flower)s. A letter makes everybody happy, "
        "too.",
    ),
    (
        "I want to learn %(game)s.",
        "That is a good idea. Begin with the rules, play %(weekly)s and do not be sad when you lose.",
    ),
    (
        "I have read a book about %(city)s.",
        "That must have been interesting. Did it speak of %(place)s as well?",
    ),
    (
        "What happened at %(place)s on %(weekday)s?",
        "A %(kind)s %(worker)s lost a %(thing)s there, and a %(animal)s found it again. Everybody was "
        "%(mood)s.",
    ),
    (
        "I have to write a letter to %(who)s.",
        "Begin with a greeting, tell %(who)s what happened in %(month)s, and end with a kind word.",
    ),
    (
        "I met %(who)s at %(place)s.",
        "What a nice surprise. I hope that %(who)s was well and that you had time to talk.",
    ),
    (
        "%(who)s and %(who2)s went to %(place)s together.",
        "I hope that they enjoyed it. On a %(weather)s day %(place)s must be beautiful.",
    ),
    (
        "%(who)s told me a joke about a %(animal)s.",
        "I like jokes about animals. Was it a %(kind)s %(animal)s?",
    ),
    (
        "Let us talk about something else.",
        "Gladly. We could talk about %(city)s, about %(flower)s or about the weather in %(month)s.",
    ),
    (
        "Do you like %(food)s?",
        "I cannot eat, but many people like %(food)s, above all with %(vegetable)s and a glass of %(drink)s.",
    ),
    (
        "Do you like music?",
        "I cannot hear it, but I like to read about it. A song about the sea would please me.",
    ),
    (
        "Say something nice.",
        "You ask good questions, and it is a pleasure to talk with you on this %(daytime)s.",
    ),
    (
        "What shall we eat today?",
        "How about %(food)s with %(vegetable)s? Afterwards you could have some %(fruit)s.",
    ),
    (
        "I have found a %(thing)s in %(room)s.",
        "Somebody may be looking for it. Ask your %(family)s before you keep the %(thing)s.",
    ),
    (
        "There is a noise in %(room)s.",
        "It may only be the wind, or a %(animal)s. Take a lamp and look %(speed)s.",
    ),
    (
        "Where is %(place)s?",
        "It is not far from %(place2)s. Turn %(side)s at the %(tree)s and walk for %(number)s minutes.",
    ),
    (
        "Is it far to %(city)s?",
        "By train it takes about %(number)s hours. On a %(weather)s day the view from the window is "
        "wonderful.",
    ),
    (
        "The soup does not taste of anything.",
        "Add some salt and a little %(herb)s, and let it boil for %(number)s minutes more. That should help.",
    ),
    (
        "How long must I boil %(vegetable)s?",
        "It depends on their size. Try one after %(number)s minutes. When it is soft, the %(vegetable)s are "
        "ready.",
    ),
    (
        "My %(tree)s has lost its leaves.",
        "In autumn that is nothing to worry about. In summer it may need more water, above all when it is "
        "young.",
    ),
    (
        "How can I learn %(lesson)s?",
        "Read a little %(weekly)s, write down what is new, and tell it to your %(family)s. What you can "
        "explain you have understood.",
    ),
    (
        "The %(worker)s was here and asked for you.",
        "Thank you. If the %(worker)s comes again, please say that I am always here.",
    ),
    (
        "What is made of %(material)s?",
        "Many things are made of %(material)s: a %(thing)s, for example, or a part of an old "
        "%(furniture_any)s.",
    ),
    (
        "My %(gadget)s is broken.",
        "That is a pity. Perhaps the %(worker)s near %(place)s can repair it, or you buy a new one at the "
        "market.",
    ),
    (
        "I would like to paint a picture.",
        "Begin with something simple, perhaps some %(fruit)s on a %(furniture_any)s. Take %(colour)s and "
        "%(colour2)s, and do not hurry.",
    ),
    (
        "What is the best time for a walk?",
        "Early in the morning, when the air is fresh. In %(season)s I would walk to %(place)s and back.",
    ),
    (
        "We heard %(sound)s in the night.",
        "Perhaps it came from %(place)s. At night every sound seems louder than it is.",
    ),
    (
        "Who lives near %(place)s?",
        "A %(kind)s %(worker)s lives there with a %(animal)s and %(number)s hens. You can hear them in the "
        "morning.",
    ),
    (
        "What does a %(worker)s do all day?",
        "A %(worker)s gets up early, works with patience, and is %(mood)s in the evening. I think that it "
        "is a good life.",
    ),
    (
        "Tell me something about %(city)s.",
        "Many people travel to %(city)s in %(season)s. They look at the old houses, eat %(food)s and write "
        "letters home.",
    ),
    (
        "%(who)s has bought a %(animal)s.",
        "That will be a lot of work, but also a lot of fun. Where will the %(animal)s sleep, in %(room)s?",
    ),
    (
        "Yesterday %(who)s and I played %(game)s.",
        "Did you win? To play %(game)s with %(who)s must have been a pleasure.",
    ),
    (
        "Count the %(things)s with me.",
        "One, two, three, four, five. There are five %(things)s, and all of them are %(colour)s.",
    ),
)
GREETINGS = 20  # the first ones, which shall be rare

STORY_REQUESTS = (
    "Tell me a story about %(topic)s.",
    "Please tell me something about %(topic)s and %(p)s.",
    "I would like to hear a story about %(topic)s.",
    "Tell me a story about %(p)s and %(topic)s.",
    "What do you know about %(p)s and %(topic)s?",
    "Can you tell me a little story about %(topic)s?",
)
STORY_INTRODUCTIONS = (
    "Listen to my story.",
    "I want to tell you something.",
    "This is what I wrote about %(topic)s.",
    "Here is a story about %(topic)s.",
    "Let me tell you about %(topic)s and %(p)s.",
)
STORY_REPLIES = (
    "Thank you for the story about %(topic)s.",
    "What a nice story.",
    "I liked the part with %(p)s.",
    "That was a good story. I would like to hear more about %(p)s.",
    "Thank you. I could see %(topic)s before my eyes.",
    "That is interesting. Please tell me more some day.",
)
