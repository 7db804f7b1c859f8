#compdef essaim
# Completion of essaim for zsh.  Written by: essaim completion zsh
_essaim() {
    local line value about program=${(Q)words[1]}
    local -a whole part
    program=${program/#\~/$HOME}
    local kind=''
    for line in "${(@f)$("$program" __complete zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null </dev/null)}"; do
        value=${line%%$'\t'*} about=''
        [[ $line == *$'\t'* ]] && about=${line#*$'\t'}
        case $value in
        '') ;;
        :files) kind=files ;;
        :folders) kind=folders ;;
        *[=/]) part+=("${value//:/\\:}${about:+:$about}") ;;
        *) whole+=("${value//:/\\:}${about:+:$about}") ;;
        esac
    done
    local found=1
    (( $#part )) && _describe -t words essaim part -S '' && found=0
    (( $#whole )) && _describe -t words essaim whole && found=0
    [[ $kind == files ]] && _files && found=0
    [[ $kind == folders ]] && _files -/ && found=0
    return found
}
if [[ ${funcstack[1]} == _essaim ]]; then
    _essaim "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
    compdef _essaim essaim
fi
