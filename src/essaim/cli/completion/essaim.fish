# Completion of essaim for fish.  Written by: essaim completion fish
function __essaim_complete
    set -l typed (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $typed[1])
    for line in ($program __complete fish $typed[2..-1] "$current" 2>/dev/null </dev/null)
        switch $line
            case :files
                __fish_complete_path $current
            case :folders
                __fish_complete_directories $current
            case '*'
                echo $line
        end
    end
end
complete -c essaim -f -a '(__essaim_complete)'
