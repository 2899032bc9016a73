# usage: complete.zsh FOLDER LINE        FOLDER has _nvcap. Prints the line as zsh completes it: a terminal, in which it is typed with a tab.
zmodload zsh/zpty
zpty shell zsh -f -i
# The marks are written in two parts: the terminal shows what is typed, too.
zpty -w shell "PROMPT=; fpath=(${(q)1} \$fpath); autoload -Uz compinit; compinit -u -D"
zpty -w shell "shown() { print -r -- '<''<'\$BUFFER'>''>' }; zle -N shown; bindkey '^X' shown; print '<''<ready>''>'"
zpty -r -m shell line '*<<ready>>*'
zpty -w -n shell "$2"$'\t\x18'
zpty -r -m shell line '*<<*>>*'
print -r -- ${${line##*<<}%%>>*}
