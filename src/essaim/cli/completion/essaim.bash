# Completion of essaim for bash.  Written by: essaim completion bash
_essaim() {
    local IFS=$'\n' word current=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    [[ $current == [=:] ]] && current=''
    while read -r word; do
        case $word in
        :files) compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -f -- "$current")) ;;
        :folders) compopt -o filenames 2>/dev/null; COMPREPLY+=($(compgen -d -- "$current")) ;;
        *) COMPREPLY+=("$word") ;;
        esac
    done < <("${1/#\~/$HOME}" __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null </dev/null)
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=/] ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -F _essaim essaim
