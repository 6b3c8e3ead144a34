# shellcheck shell=bash
# Sourced by the scripts beside it: finds a Python, makes .venv and installs the project into it.
# Call set_up; afterwards the commands of .venv come first in PATH. Works in the repository's root.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

EXTRAS="mxnet,mpich,dev,examples,bench,docs"

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

# Runs and can make virtual environments; a pyenv shim may exist and do neither.
is_python() { # COMMAND MINOR
    "$1" -c "import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, $2))" >/dev/null 2>&1
}

# The newest Python that MXNet 1.9.1 has the NumPy for. The distribution's comes first: it is built with profiles of
# its use, pyenv's is not unless asked, and takes 1.4 times as long for the same Python (docs/where-the-time-goes.md).
find_python() {
    local minor candidate
    for minor in 11 10; do
        for candidate in "/usr/bin/python3.$minor" "python3.$minor" python3 python \
            "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python; do
            if is_python "$candidate" "$minor"; then
                command -v "$candidate"
                return
            fi
        done
    done
    fail "found no Python 3.10 or 3.11 that can make virtual environments (MXNet 1.9.1 needs one)." \
        "Install one, for example: apt install python3.11-venv, or pyenv install 3.11, or uv python install 3.11"
}

make_environment() {
    if [ ! -d .venv ]; then
        local python
        python=$(find_python)
        say "making .venv with $python"
        "$python" -m venv .venv
    fi
    .venv/bin/python -c "import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 11))" ||
        fail "the Python in .venv does not run or is not 3.10 or 3.11; remove .venv and try again"
}

# The wheel of MXNet brings most of its libraries, but not these two of GCC's.
check_mxnet() {
    local problem
    if problem=$(.venv/bin/python -c "import mxnet" 2>&1); then
        return
    fi
    say "mxnet cannot be imported: ${problem##*$'\n'}"
    case $problem in
    *libgomp* | *libquadmath*) fail "install the libraries, for example: apt install libgomp1 libquadmath0" ;;
    *) fail "the wheel of mxnet 1.9.1 is for Linux and macOS on x86_64" ;;
    esac
}

# pip is asked only when what setup.py wants, or the place of the tree, has changed since the last time.
install() {
    local stamp=.venv/installed wanted
    wanted=$(.venv/bin/python -c 'import hashlib, pathlib, sys
print(hashlib.sha256(pathlib.Path("setup.py").read_bytes()).hexdigest(), *sys.argv[1:])' "$EXTRAS" "$PWD")
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        return
    fi
    say "installing the project and what it needs into .venv (once; takes a minute and the network)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$EXTRAS]" ||
        fail "pip could not install; its message is above. The network is needed this once"
    check_mxnet
    printf '%s\n' "$wanted" >"$stamp"
}

# Hundreds of processes of the tests import the project: none of them has to compile it.
compile_project() {
    .venv/bin/python -m compileall -q kvstore_mpi launcher tests examples benchmarks
}

set_up() {
    make_environment
    install
    compile_project
    PATH="$PWD/.venv/bin:$PATH"
    export PATH
}

# Tests marked root limit the rate of links between network namespaces.
can_make_namespaces() {
    [ "$(id -u)" = 0 ] && command -v ip >/dev/null && command -v tc >/dev/null &&
        unshare --net true 2>/dev/null
}
