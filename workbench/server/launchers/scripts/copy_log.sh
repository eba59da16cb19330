# Copies the log of a container into the run's log, which is stdout. A program that was killed, or a
# daemon that was restarted, may have cut a line and left a message: `resume` finds out how much of
# the copy is the container's, by leaving out last lines until the bytes agree. The next copy begins
# there. wb_from counts bytes of the container's log, wb_base bytes of the run's.

size() { wc -c <"$wb_log" || echo 0; }

# Takes $1 bytes from stdin, and not one more (busybox's head does).
skip() {
    [ "$1" -lt 4096 ] || dd bs=4096 count=$(($1 / 4096)) iflag=fullblock
    [ $(($1 % 4096)) -eq 0 ] || dd bs=1 count=$(($1 % 4096))
} >/dev/null

container_log() { "$wb_program" logs "$wb_container" 2>&1; }

copied() { tail -c "+$((wb_base + 1))" <"$wb_log" | head -c "$1"; }

same() { [ "$(copied "$1" | sha256sum)" = "$(container_log | { skip "$wb_from"; head -c "$1"; } | sha256sum)" ]; }

resume() {
    wb_all=$(($(size) - wb_base)) wb_lines=0
    wb_have=$wb_all
    until [ "$wb_have" -le 0 ] || same "$wb_have"; do
        wb_lines=$((wb_lines + 1))
        [ "$wb_lines" -lt 10 ] || { wb_have=0 && break; }
        wb_have=$((wb_have - $(copied "$wb_have" | tail -n 1 | wc -c)))
    done
    wb_from=$((wb_from + wb_have)) wb_base=$((wb_base + wb_all))
}

copy() {
    resume
    container_log | { skip "$wb_from"; cat; }
}

# Copies until the container ends, or until it is seen to be lost: the program may never notice that.
follow() {
    resume
    rm -f "$wb_dir/following"
    {
        "$wb_program" logs --follow "$wb_container" 2>&1 &
        echo $! >"$wb_dir/following"
        wait $!
    } | { skip "$wb_from"; exec cat; } &
    wb_copier=$! wb_turns=0 wb_missed=0
    while kill -0 "$wb_copier"; do
        { [ "$wb_turns" -lt 10 ] && sleep 0.2; } || sleep 1
        wb_turns=$((wb_turns + 1))
        if lost; then wb_missed=$((wb_missed + 1)); else wb_missed=0; fi
        [ "$wb_missed" -lt 2 ] || { read -r wb_logs <"$wb_dir/following" && kill -s KILL "$wb_logs"; }
    done
    rm -f "$wb_dir/following"
}
