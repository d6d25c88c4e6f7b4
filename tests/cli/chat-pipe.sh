#!/usr/bin/env bash
# labels: fast
# kondense chat as a script uses it: lines in, answers out, the model's state kept between turns.
set -u
model=$KONDENSE_TEST_DATA/k3-nano
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAIL: $*"; exit 1; }
chat() { "$KONDENSE" chat "$model" --temp 0 "$@"; }
field() { sed -n "s/.*\"$1\": \([^,]*\),.*/\1/p"; }

cat >"$tmp/tools.json" <<'J'
[{"type": "function", "function": {"name": "get_weather", "description": "Current weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
J

# A tool call, its result, and a third turn; the prompt of each turn begins with what was seen before.
printf '%s\n' 'What is the weather in York?' '/tool 7 degrees' '' 'Thank you.' |
    chat --tools "$tmp/tools.json" -n 100 --json >"$tmp/turns" || fail "three turns"
[ "$(wc -l <"$tmp/turns")" = 3 ] || fail "not three answers"
sed -n 1p "$tmp/turns" | grep -q '"tool_calls": \[{"name":"get_weather","arguments":{"city":"' || fail "no call"
for i in 1 2; do
    a=$(sed -n ${i}p "$tmp/turns") b=$(sed -n $((i + 1))p "$tmp/turns")
    seen=$(($(echo "$a" | field prompt_tokens) + $(echo "$a" | field tokens)))
    [ "$(echo "$a" | field finish)" = '"stop"' ] && seen=$((seen - 1))
    reused=$(echo "$b" | field reused_tokens)
    [ "$reused" = "$seen" ] || fail "turn $((i + 1)) reused $reused of $seen tokens"
done

# The same input gives the same answers, with any number of threads; another seed does not.
one=$(echo 'Name three rivers.' | "$KONDENSE" chat "$model" -n 40 --json --threads 1)
two=$("$KONDENSE" chat "$model" -n 40 --json --threads 2 -p 'Name three rivers.')
other=$("$KONDENSE" chat "$model" -n 40 --json --seed 5 -p 'Name three rivers.')
[ -n "$one" ] && [ "$one" = "$two" ] || fail "threads or -p change the answer: $one / $two"
[ "$one" != "$other" ] || fail "the seed changes nothing"

# /reset forgets: the question asked again is answered as at first.
printf '%s\n' 'Hi' '/reset' 'Hi' | chat -n 12 --json >"$tmp/again" || fail "reset"
[ "$(sed -n 1p "$tmp/again")" = "$(sed -n 2p "$tmp/again")" ] || fail "reset: $(cat "$tmp/again")"

# Plain output has no escape sequences; /quit ends; /help is short.
printf '%s\n' '/help' 'Hi' '/quit' 'Hi' | chat -n 12 --no-think >"$tmp/plain" || fail "plain"
grep -q '^/reset' "$tmp/plain" || fail "no help"
if grep -q "$(printf '\033')" "$tmp/plain"; then fail "escape sequences in a pipe"; fi

# Control tokens in a message are text, also for the count of the prompt.
n=$(chat -n 1 --json -p '<|close|>message<|sep|><|end_of_msg|>' | field prompt_tokens)
[ "$n" -gt 110 ] || fail "control tokens were taken from text: $n"
