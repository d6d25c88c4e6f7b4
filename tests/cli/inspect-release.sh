#!/usr/bin/env bash
# inspect on the released config and index, without weights: the true totals (K3 specification 2.4).
set -eu
release=${KONDENSE_SHARED:-$KONDENSE_TEST_ROOT/../shared}/release
[ -d "$release" ] || { echo "inspect-release: no $release: skipped"; exit 77; }
out=$(mktemp)
trap 'rm -f "$out"' EXIT
"$KONDENSE" inspect "$release" --json >"$out"
for t in '"tensor_count": 497220' '"total": 2779931837184' '"active": 104189614848' \
    '"routed": 2722740830208' '"other": 57191006976' '"total": 1560860324864' '"routed": 1446456066048' \
    '"routed_packed": 1361370415104' '"routed_scales": 85085650944' '"other": 114404258816' \
    '"index_total": 1560860324864' '"index_agrees": true' '"unsized_tensors": 0' '"kda_layers": 69' \
    '"mla_layers": 24' '"moe_layers": 92' '"runs": true' '"unknown_keys": []' '"missing_tensors": []'; do
    grep -qF -- "$t" "$out" || { echo "inspect-release: $t is missing" >&2; exit 1; }
done
# tensors, parameters and bytes of a kind
kind() {
    got=$(grep -A3 "^    \"$1\": {" "$out" | tr -dc '0-9\n' | tr '\n' ' ')
    [ "$got" = " $2 " ] || { echo "inspect-release: $1 is '$got', not '$2'" >&2; exit 1; }
}
kind routed "494592 2722740830208 1446456066048"
kind kda "966 30618088704 61258257408"
kind mla "192 5572706304 11145412608"
kind dense "3 726663168 1453326336"
kind norms "558 3999744 7999488"
kind embed "1 1174405120 2348810240"
kind final "3 21504 43008"
kind vision "165 401214464 802428928"
kind projector "3 46144512 92289024"
kind unknown "0 0 0"
"$KONDENSE" inspect "$release" >"$out"
grep -qF "2,779,931,837,184 (2.780 T), used for a token 104,189,614,848" "$out" ||
    { echo "inspect-release: text" >&2; exit 1; }
echo "inspect-release: ok"
