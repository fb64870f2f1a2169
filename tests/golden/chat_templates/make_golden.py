#!/usr/bin/env python3
"""Renders the templates and expressions below with Python's jinja2, as checkpoints' chat templates are
meant to be rendered, and writes golden.json beside this file. Needs the package jinja2.

usage: make_golden.py
"""

import json
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


ENVIRONMENT = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
)
ENVIRONMENT.filters["tojson"] = tojson
ENVIRONMENT.globals["raise_exception"] = raise_exception

# Written for this project in the manner of templates in use.
TEMPLATES = {
    "plain": (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
        "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    ),
    "markers": (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
        " + '<|im_end|>' + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "default_system": """
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set system_message = 'You are helpful.' %}
    {%- set loop_messages = messages %}
{%- endif %}
{{- bos_token + '[SYS]' + system_message + '[/SYS]' }}
{%- for message in loop_messages %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' ~ message.content | trim ~ ' [/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles are supported, not ' + message.role) }}
    {%- endif %}
{%- endfor %}
""",
    "alternation": """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% else %}
{{ message['content'] + eos_token }}
{% endif %}
{% endfor %}""",
    "headers": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}"
        "{% set content = '<|start|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim"
        " + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
        "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\\n\\n' }}"
        "{% endif %}"
    ),
    "turns": """{{ bos_token }}
{%- for message in messages -%}
    {%- if message['role'] == 'assistant' -%}
        {%- set role = 'model' -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<turn>' + role + '\\n' + message['content'] | trim + '</turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<turn>model\\n' }}
{%- endif -%}
""",
    "namespace": """
{%- set ns = namespace(found=false, count=0, last='none') -%}
{%- for message in messages -%}
  {%- if message.role == 'system' -%}{%- set ns.found = true -%}{%- endif -%}
  {%- set ns.count = ns.count + 1 -%}
  {%- set ns.last = message.role -%}
{%- endfor -%}
{{ ns.found }}/{{ ns.count }}/{{ ns.last }}
""",
    "loop_facts": (
        "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}"
        "{{ loop.length }}{{ loop.revindex }}{% if loop.previtem is defined %}<{{ loop.previtem.role }}"
        "{% endif %}{% if not loop.last %}, {% endif %}{% else %}nothing{% endfor %}"
    ),
    "json": "{{ messages | tojson }}\n{{ messages[0] | tojson(indent=2) }}{{ {'a': [1, 2.5, none, true]} }}",
    "white_space": """
  {% if true %}
    a
  {% endif %}
  {#- gone -#}
b  {%- if true %} c {% endif -%}  d
{% for i in range(3) %}
  {{ i }}
{% endfor %}
e
{# a comment #}
f""",
    "scopes": (
        "{% set x = 1 %}{% for m in messages %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}"
        "{% if true %}{% set x = 9 %}{% endif %}{{ x }}"
    ),
    "blocks": "{% set text %}<{{ messages | length }}>{% endset %}{{ text }}{{ text | length }}",
    "jumps": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.role }};"
        "{% if m.role == 'assistant' %}{% break %}{% endif %}{% endfor %}"
    ),
    "filters": (
        "{{ messages | map(attribute='role') | join('-') }}|"
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}|"
        "{{ messages | rejectattr('role', 'in', ['user']) | map(attribute='role') | list }}|"
        "{{ missing | default('d') }}|{{ '' | default('e', true) }}|{{ 'aXbX' | replace('X', '-') }}|"
        "{{ 'hello world' | title }}|{{ 'hELLO' | capitalize }}|{{ [3, 1] | first }}|{{ 'xyz' | last }}|"
        "{{ '7' | int + 1 }}|{{ -3 | abs }}|{{ [1, 1, 2] | unique | list }}|{{ 'abc' | reverse }}|"
        "{% for k, v in {'p': 1, 'q': 'r'}.items() %}{{ k }}={{ v }};{% endfor %}|"
        "{{ {'p': 1} | items | list | length }}|{{ 'a\\nb' | indent(2) }}"
    ),
    "methods": (
        "{{ '  a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'a,b,c'.split(',') }}|{{ ' a  b '.split() }}|"
        "{{ 'a,b,c'.split(',')[-1] }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith('b') }}|"
        "{{ 'Ab'.upper() }}{{ 'Ab'.lower() }}|{{ 'a-b'.replace('-', '+') }}|{{ messages[0].get('name') }}|"
        "{{ messages[0].get('name', 'x') }}|{{ 'a</think>b'.split('</think>')[-1].lstrip('\\n') }}|"
        "{{ 'abc'.find('c') }}|{{ '  x'.lstrip() }}|{{ 'x  '.rstrip() }}.|{{ {'a': 1}.keys() | list }}"
    ),
    "expressions": (
        "{{ 1 + 2 * 3 - 4 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ -7 % 3 }}|{{ 7 / 2 }}|{{ 2 ~ 'a' ~ none }}|"
        "{{ 'a' if false else 'b' }}|{{ 'a' if false }}|{{ not true or 1 == 1.0 }}|{{ 'a' in 'cat' }}|"
        "{{ 3 not in [1, 2] }}|{{ 'role' in messages[0] }}|{{ 1 < 2 and 'b' >= 'a' }}|{{ none is none }}|"
        "{{ missing is defined }}|{{ messages is iterable }}|{{ messages[0] is mapping }}|{{ 'x' is string }}|"
        "{{ 4 is even }}|{{ 4 is divisibleby 2 }}|{{ true is true }}|{{ messages is not none }}|{{ (1, 2)[1] }}|"
        "{{ 'häß'[1:] }}|{{ 'abcdef'[::2] }}|{{ [1, 2, 3][::-1] }}|{{ 'abc'[-1] }}|{{ [1, 2, 3][-2:] }}|"
        "{{ missing }}|{{ messages[0].missing }}|{{ 'it''s' }}|{{ \"q'\" }}|{{ ['a\\'b', 'c'] }}|{{ 1.0 }}|{{ 1e3 if false else 0.1 }}"
    ),
    "kwargs": "{% if enable is defined and enable is false %}off{% else %}on{% endif %}{{ tools is none }}",
    "macros": """
{%- macro text_of(content, name='x', mark=name ~ '>') %}
  {%- if content is string %}{{ mark }}{{ content }}{% else %}{% for part in content %}{{ text_of(part, mark='-') }}
  {%- endfor %}{% endif %}
{%- endmacro %}
{%- for message in messages -%}
  {{ text_of(message.content) | trim }};{{ text_of([message.content, 'b'], name=message.role) }};
  {%- set inner = 1 %}{{ inner }}
{%- endfor -%}
{%- if true %}{% macro late(a, b=2) %}[{{ a }}{{ a is defined }}{{ b }}{{ outer }}{{ inner }}{{ loop is defined }}
{%- set outer = 'in' %}{{ outer }}]{% endmacro %}{% endif -%}
{%- set outer = 'out' %}{{ late() }}{{ late(1, b=none) ~ late(b=3, a=none) }}{{ outer }}{{ late is callable }}
""",
    "macro_counts": (
        "{% set ns = namespace(n=0) %}{% macro count() %}{% set ns.n = ns.n + 1 %}{% endmacro %}"
        "{% for m in messages %}{{ count() }}{% endfor %}{{ ns.n }}"
    ),
    "macro_recursion": (
        "{% macro tree(n) %}<{% if n > 0 %}{{ tree(n - 1) }}{{ tree(n - 2) }}{% endif %}>{% endmacro %}"
        "{{ tree(messages | length) }}"
    ),
    "macro_jumps": (
        "{% macro some(list) %}{% for x in list %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}"
        "{% endmacro %}{% for m in messages %}{{ some([1, 2, 3, 4]) }}{% continue %}z{% endfor %}"
    ),
    "macro_unknown_argument": "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=1) }}",
    "macro_argument_twice": "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=1) }}",
    "macro_many_arguments": "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}",
    "macro_before_its_definition": "{{ f() }}{% macro f() %}{% endmacro %}",
    "macro_missing_argument": "{% macro f(a) %}{{ a.b }}{% endmacro %}{{ f() }}",
    "undefined_attribute": "{{ nothing.at_all }}",
    "bad_sum": "{{ 'a' + 1 }}",
}

SHORT = [{"role": "user", "content": "Hello"}]
LONG = [
    {"role": "system", "content": " Be brief. \n"},
    {"role": "user", "content": "  What is ä < \"b\"?\n"},
    {"role": "assistant", "content": "It's\n\n'c'. "},
    {"role": "user", "content": ""},
]
TOOL = [{"role": "user", "content": "x"}, {"role": "tool", "content": "y"}]


def main():
    cases = []
    for name, source in TEMPLATES.items():
        for messages in (SHORT, LONG, TOOL, []):
            for prompt in (True, False):
                variables = {
                    "messages": messages,
                    "add_generation_prompt": prompt,
                    "bos_token": "<s>",
                    "eos_token": "</s>",
                    "tools": None,
                }
                case = {"name": name, "template": source, "variables": variables}
                try:
                    case["text"] = ENVIRONMENT.from_string(source).render(**variables)
                except Exception as error:  # what the template refuses, we have to refuse
                    case["error"] = str(error)
                cases.append(case)
    path = Path(__file__).parent / "golden.json"
    path.write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
