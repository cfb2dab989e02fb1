# Sourced: `read_lines VARIABLE` reads the non-empty lines of a variable into the array `lines`. Bash 3.2 of macOS has
# no `mapfile`.
read_lines() {
    lines=()
    local line
    while IFS= read -r line || [ -n "$line" ]; do
        line="${line%$'\r'}"
        [ -z "$line" ] || lines+=("$line")
    done <<<"${!1:-}"
}
