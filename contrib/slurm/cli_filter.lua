-- Slurm's cli_filter: gets a job's GPU memory from vramcast before it is queued (docs/slurm.md).
-- Put it next to slurm.conf on every submit host, and set CliFilterPlugins=lua in slurm.conf.
--
-- A submission waits at most for the settings' timeout_s plus one second, and never fails without an answer: after any error
-- here, the job is submitted unchanged. The filter runs as the user, who can bypass it: it is a service, not a barrier.

local PYTHON = "/opt/vramcast/bin/python" -- in a folder that every user can read; it needs no torch
local SETTINGS = "/etc/slurm/vramcast.toml"
local LAST_S = 60 -- the hook exits earlier; this ends a Python that does not

local function quoted(text)
    return "'" .. text:gsub("'", "'\\''") .. "'"
end

-- Return the lines of the hook's output. -I -P: Python imports nothing from the submission's folder or from PYTHONPATH.
local function said(options)
    local words = { "/usr/bin/timeout", tostring(LAST_S), quoted(PYTHON), "-I -P -m vramcast.cluster.slurm --settings", quoted(SETTINGS),
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
