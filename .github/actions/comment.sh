#!/usr/bin/env bash
# Compare the run with the baseline, comment on the pull request, and keep a run of another event as the next baseline.
set -uo pipefail
source "$(dirname "$0")/lines.sh"
arguments=(--key "$KEY")
if [ -n "$RUN" ]; then
    arguments+=("$RUN")
else
    arguments+=(--log "$RUN_LOG")
fi

case "$GITHUB_EVENT_NAME" in pull_request*) on_request=true ;; *) on_request=false ;; esac
baseline="$BASELINE"
if [ -z "$baseline" ] && $on_request && [ -e "$NDLD_FLOW_OUTPUTS/tags/baseline-$KEY" ]; then
    baseline="baseline-$KEY"
fi
if [ -n "$RUN" ] && [ -n "$baseline" ]; then
    arguments+=(--against "$baseline${PROFILE:+:$PROFILE}")
    [ -z "$PROFILE" ] || arguments+=(--measure)
    read_lines GATES
    for gate in ${lines[@]+"${lines[@]}"}; do arguments+=(--gate "$gate"); done
fi
[ "$COMMENT" = true ] || arguments+=(--summary-only)

token="ndld-flow-$RANDOM$RANDOM$RANDOM"
echo "::stop-commands::$token"
ndld-flow comment "${arguments[@]}"
exit_code=$?
if [ "$RUN_EXIT_CODE" = 0 ] && ! $on_request; then
    ndld-flow tag "$RUN" "baseline-$KEY"
    # The cache must not grow for ever. A folder that is kept on a runner of your own is yours to clean.
    case "$CACHE$NDLD_FLOW_OUTPUTS" in true/* | true?:* | false*) ;; *) ndld-flow gc --keep 3 ;; esac
fi
echo "::$token::"
# A run that failed stays failed, whatever became of the comment.
[ "$RUN_EXIT_CODE" = 0 ] || exit_code="$RUN_EXIT_CODE"
echo "exit-code=$exit_code" >>"$GITHUB_OUTPUT"
