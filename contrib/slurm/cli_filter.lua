-- Slurm's cli_filter: asks vramcast what a job takes of a card, before it is queued (docs/slurm.md).
-- It lies beside slurm.conf on every host where jobs are submitted; slurm.conf has CliFilterPlugins=lua.
--
-- A submission never waits for longer than the settings' timeout_s and a second, and never fails for want of an answer: whatever
-- goes wrong here, the job is submitted as it is. It runs as the user, who can go around it: it is a courtesy, not a wall.

local PYTHON = "/opt/vramcast/bin/python" -- of a folder which every user can read; it needs no torch
local SETTINGS = "/etc/slurm/vramcast.toml"
local LAST_S = 60 -- the hook ends itself before; this ends a Python that does not

local function quoted(text)
    return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- Return what the hook says, a line each. -I -P: nothing of the folder where somebody submits, and nothing of PYTHONPATH, is run.
local function said(options)
    local words = { "/usr/bin/timeout", tostring(LAST_S), quoted(PYTHON), "-I -P -m vramcast.schedulers.slurm --settings", quoted(SETTINGS),
        "submit", quoted(options["type"] or ""), quoted(slurm.json_cli_options(options)), "2>/dev/null </dev/null" }
    local pipe = io.popen(table.concat(words, " "))
    local lines = {}
    for line in pipe:lines() do
        lines[#lines + 1] = line
    end
    pipe:close()
    return lines
end

local function decide(options)
    for _, line in ipairs(said(options)) do
        local name, value = line:match("^set (%S+) ?(.*)$")
        local word, text = line:match("^(%a+) (.*)$")
        if name then
            options[name] = value
        elseif word == "say" then
            slurm.log_info("%s", text)
        elseif word == "refuse" then
            slurm.log_error("%s", text)
            return slurm.ERROR
        end
    end
    return slurm.SUCCESS
end

function slurm_cli_setup_defaults(options, early_pass)
    return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
    local done, result = pcall(decide, options)
    return done and result or slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
    return slurm.SUCCESS
end
