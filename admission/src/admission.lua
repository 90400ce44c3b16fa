-- Admission in Redis: the same as book.rs, which says why. All of one question happens here at once, by Redis' own clock.
-- KEYS[1] is what all keys begin with; the braces in it keep them in one slot of a cluster.
local P = KEYS[1]
local op = ARGV[1]
local rules = cjson.decode(ARGV[2])
local arg = cjson.decode(ARGV[3])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)

local REMEMBERED = 3600000 -- how long it is remembered that a round is over
local DAY = 86400000
local LOOKS = 2000 -- how many tenants and lanes one question looks at, at most: Redis serves nobody else meanwhile
local PAGE = 64
local REBUILDING = 10000 -- how long one process has to count anew, before another tries

-- ---------------------------------------------------------------- limits and rates

local function rule(kind, name)
  local own = rules[kind].o[name]
  if own == nil then return rules[kind].d end
  return own
end

local function room(kind, name)
  local most = rule(kind, name)
  if most == nil then return true end
  local key = P .. 'held:' .. kind .. ':' .. name
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  return redis.call('ZCARD', key) < most
end

local function room_user(tenant, user)
  return user == '' or room('u', tenant .. '/' .. user)
end

local function bucket(kind, name)
  local rate = rule(kind, name)
  if rate == nil then return nil end
  local key = P .. 'rate:' .. kind .. ':' .. name
  local kept = redis.call('HMGET', key, 'n', 'at')
  local tokens, at = tonumber(kept[1] or rate.n), tonumber(kept[2] or now)
  return { key = key, ms = rate.ms, n = math.min(rate.n, tokens + math.max(0, now - at) * rate.n / rate.ms) }
end

local function may_ask(kind, name)
  local it = bucket(kind, name)
  return it == nil or it.n >= 1
end

local function spend(kind, name)
  local it = bucket(kind, name)
  if it == nil then return end
  redis.call('HSET', it.key, 'n', string.format('%.6f', it.n - 1), 'at', now)
  redis.call('PEXPIRE', it.key, it.ms + 1000)
end

-- ---------------------------------------------------------------- slots

local function counted_by(s)
  local all = { 'p:' .. s.provider, 'm:' .. s.model, 't:' .. s.tenant }
  if s.user ~= '' then all[4] = 'u:' .. s.tenant .. '/' .. s.user end
  return all
end

local function hold(s, ends, called)
  for _, name in ipairs(counted_by(s)) do redis.call('ZADD', P .. 'held:' .. name, ends, s.attempt) end
  redis.call('ZADD', P .. 'held', ends, s.attempt)
  local key = P .. 'slot:' .. s.attempt
  redis.call('HSET', key, 's', cjson.encode(s), 'round', s.round, 'called', called, 'ends', ends, 'at', now)
  redis.call('PEXPIREAT', key, ends + DAY)
end

local function let_go(id)
  local kept = redis.call('HGET', P .. 'slot:' .. id, 's')
  if kept then
    for _, name in ipairs(counted_by(cjson.decode(kept))) do redis.call('ZREM', P .. 'held:' .. name, id) end
    redis.call('DEL', P .. 'slot:' .. id)
  end
  redis.call('ZREM', P .. 'held', id)
  redis.call('ZREM', P .. 'called', id)
end

-- What is held for an attempt, while its lease runs.
local function live(id)
  local kept = redis.call('HMGET', P .. 'slot:' .. id, 'round', 'called', 'ends', 'at')
  if kept[1] and tonumber(kept[3]) > now then
    return { round = tonumber(kept[1]), called = kept[2] == '1', at = tonumber(kept[4]) }
  end
  return nil
end

local function is_over(id, round)
  local over = redis.call('GET', P .. 'over:' .. id)
  return over and tonumber(over) >= round
end

-- ---------------------------------------------------------------- the line

local function lane_of(s) return s.model .. '\n' .. s.user end
local function lanes_key(provider, tenant) return P .. 'lanes:' .. provider .. '\n' .. tenant end
local function lane_key(provider, tenant, lane) return P .. 'lane:' .. provider .. '\n' .. tenant .. '\n' .. lane end

local function stand(s, place)
  local lane = lane_of(s)
  local key = lane_key(s.provider, s.tenant, lane)
  redis.call('ZADD', key, place, s.attempt)
  local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  redis.call('ZADD', lanes_key(s.provider, s.tenant), head[2], lane)
  local tenants = P .. 'tenants:' .. s.provider
  if not redis.call('ZSCORE', tenants, s.tenant) then
    local own = tonumber(redis.call('HGET', P .. 'turns:' .. s.provider, s.tenant) or 0)
    local served = tonumber(redis.call('HGET', P .. 'served', s.provider) or 0)
    redis.call('ZADD', tenants, string.format('%.17g', math.max(own, served)), s.tenant)
    redis.call('SADD', P .. 'providers', s.provider)
  end
end

local function step_out(s)
  local lane = lane_of(s)
  local key = lane_key(s.provider, s.tenant, lane)
  if redis.call('ZREM', key, s.attempt) == 0 then return end
  local lanes = lanes_key(s.provider, s.tenant)
  local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if head[1] then
    redis.call('ZADD', lanes, head[2], lane)
    return
  end
  redis.call('ZREM', lanes, lane)
  if redis.call('ZCARD', lanes) > 0 then return end
  local tenants = P .. 'tenants:' .. s.provider
  local turn = redis.call('ZSCORE', tenants, s.tenant)
  redis.call('ZREM', tenants, s.tenant)
  local turns = P .. 'turns:' .. s.provider
  if turn then redis.call('HSET', turns, s.tenant, turn) end
  redis.call('PEXPIRE', turns, DAY)
  -- Of tenants that are not ahead of who was served last nothing has to be remembered.
  if redis.call('HLEN', turns) > 1000 then
    local served = tonumber(redis.call('HGET', P .. 'served', s.provider) or 0)
    local all = redis.call('HGETALL', turns)
    for i = 1, #all, 2 do
      if tonumber(all[i + 1]) <= served then redis.call('HDEL', turns, all[i]) end
    end
  end
  if redis.call('ZCARD', tenants) == 0 then redis.call('SREM', P .. 'providers', s.provider) end
end

local function not_waiting(id)
  redis.call('DEL', P .. 'wait:' .. id)
  redis.call('ZREM', P .. 'waiting', id)
end

local function forget(id)
  local kept = redis.call('HGET', P .. 'wait:' .. id, 's')
  if not kept then return end
  step_out(cjson.decode(kept))
  not_waiting(id)
end

local function take(s)
  forget(s.attempt)
  redis.call('ZREM', P .. 'called', s.attempt)
  hold(s, now + rules.lease, 0)
end

local function line_up(s)
  local key = P .. 'wait:' .. s.attempt
  if redis.call('EXISTS', key) == 1 then
    redis.call('HSET', key, 's', cjson.encode(s))
    return
  end
  local place = string.format('%.0f', redis.call('INCR', P .. 'arrivals') - s.priority * 1000000000000)
  redis.call('HSET', key, 's', cjson.encode(s), 'place', place, 'missed', 0, 'since', now)
  redis.call('ZADD', P .. 'waiting', now, s.attempt)
  stand(s, place)
end

-- Who was called and did not come is in line again, or out after too many times. Leases that have ended leave nothing behind.
local function pass_time()
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'called', '-inf', now, 'LIMIT', 0, 200)) do
    let_go(id)
    local kept = redis.call('HMGET', P .. 'wait:' .. id, 's', 'place', 'missed')
    if kept[1] then
      local missed = tonumber(kept[3]) + 1
      if missed >= rules.missed then
        not_waiting(id)
      else
        redis.call('HSET', P .. 'wait:' .. id, 'missed', missed)
        stand(cjson.decode(kept[1]), kept[2])
      end
    end
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'held', '-inf', now, 'LIMIT', 0, 200)) do let_go(id) end
end

-- The next one at a provider that has room everywhere.
local looks = 0
local function next_at(provider)
  if not room('p', provider) or not may_ask('rp', provider) then return nil end
  local from = 0
  while looks < LOOKS do
    local tenants = redis.call('ZRANGE', P .. 'tenants:' .. provider, from, from + PAGE - 1)
    if #tenants == 0 then return nil end
    for _, tenant in ipairs(tenants) do
      looks = looks + 1
      if room('t', tenant) and may_ask('rt', tenant) then
        for _, lane in ipairs(redis.call('ZRANGE', lanes_key(provider, tenant), 0, PAGE - 1)) do
          looks = looks + 1
          local cut = string.find(lane, '\n', 1, true)
          if room('m', string.sub(lane, 1, cut - 1)) and room_user(tenant, string.sub(lane, cut + 1)) then
            local id = redis.call('ZRANGE', lane_key(provider, tenant, lane), 0, 0)[1]
            local kept = id and redis.call('HGET', P .. 'wait:' .. id, 's')
            if kept then return cjson.decode(kept) end
            if id then redis.call('ZREM', lane_key(provider, tenant, lane), id) end
          end
        end
      end
    end
    from = from + PAGE
  end
  return nil
end

-- Whose turn it is, as long as there are slots: each is held for who is called.
local function call_out()
  local called = {}
  local providers = redis.call('SMEMBERS', P .. 'providers')
  table.sort(providers)
  for _, provider in ipairs(providers) do
    local s = next_at(provider)
    while s do
      local tenants = P .. 'tenants:' .. provider
      local turn = tonumber(redis.call('ZSCORE', tenants, s.tenant) or 0)
      local served = tonumber(redis.call('HGET', P .. 'served', provider) or 0)
      redis.call('HSET', P .. 'served', provider, string.format('%.17g', math.max(served, turn)))
      redis.call('ZADD', tenants, string.format('%.17g', turn + 1 / (rules.weights[s.tenant] or 1)), s.tenant)
      step_out(s)
      spend('rp', provider)
      spend('rt', s.tenant)
      hold(s, now + rules.call, 1)
      redis.call('ZADD', P .. 'called', now + rules.call, s.attempt)
      called[#called + 1] = s
      s = next_at(provider)
    end
  end
  return called
end

local function why(s)
  if not room('p', s.provider) then return 'slot_provider' end
  if not room('m', s.model) then return 'slot_model' end
  if not room('t', s.tenant) then return 'slot_tenant' end
  if not room_user(s.tenant, s.user) then return 'slot_user' end
  if not may_ask('rp', s.provider) then return 'rate_provider' end
  if not may_ask('rt', s.tenant) then return 'rate_tenant' end
  return 'slot_turn'
end

-- An answer: a word, two more, and then those who were called.
local function answer(word, first, second, called)
  local all = { word, tostring(first or ''), tostring(second or '') }
  for _, s in ipairs(called or {}) do all[#all + 1] = cjson.encode(s) end
  return all
end

-- ---------------------------------------------------------------- what is asked

local ops = {}

function ops.ask()
  local held = live(arg.attempt)
  if is_over(arg.attempt, arg.round) or (held and held.round > arg.round) then return answer('wait', 1000, 'slot_turn') end
  if held then
    take(arg)
    return answer('granted')
  end
  line_up(arg)
  local others, granted = {}, false
  for _, s in ipairs(call_out()) do
    if s.attempt == arg.attempt then granted = true else others[#others + 1] = s end
  end
  if granted then
    take(arg)
    return answer('granted', '', '', others)
  end
  local waited = now - tonumber(redis.call('HGET', P .. 'wait:' .. arg.attempt, 'since') or now)
  local after = math.min(math.max(waited, rules.first), rules.last)
  return answer('wait', string.format('%.0f', after), why(arg), others)
end

function ops.keep()
  local held = live(arg.attempt)
  if is_over(arg.attempt, arg.round) or (held and held.round > arg.round) then return answer('older') end
  take(arg)
  return answer('kept')
end

function ops.give_back()
  local over = P .. 'over:' .. arg.attempt
  redis.call('SET', over, math.max(arg.round, tonumber(redis.call('GET', over) or 0)), 'PX', REMEMBERED)
  local held = live(arg.attempt)
  if held and held.round <= arg.round then let_go(arg.attempt) end
  local kept = redis.call('HGET', P .. 'wait:' .. arg.attempt, 's')
  if kept and cjson.decode(kept).round <= arg.round then forget(arg.attempt) end
  return answer('over', '', '', call_out())
end

function ops.withdraw()
  local held = live(arg.attempt)
  if held and held.called then let_go(arg.attempt) end
  forget(arg.attempt)
  return answer('out', '', '', call_out())
end

function ops.tick()
  return answer('so', '', '', call_out())
end

-- One process compares at a time, and not again right after; where the counts are lost, at once.
function ops.sweep_begin()
  local key, ms = P .. 'sweeping', arg.ms
  if redis.call('EXISTS', P .. 'epoch') == 0 then key, ms = P .. 'rebuilding', REBUILDING end
  if redis.call('SET', key, arg.mark, 'NX', 'PX', ms) then return answer('yes', string.format('%.0f', now)) end
  return answer('no')
end

function ops.sweep_hold()
  for _, s in ipairs(arg.slots) do
    local held = live(s.attempt)
    if not is_over(s.attempt, s.round) then
      if not (held and held.round > s.round) then take(s) end
      redis.call('HSET', P .. 'slot:' .. s.attempt, 'seen', arg.mark)
    end
  end
  return answer('held')
end

function ops.sweep_end()
  -- What was lost meanwhile (this mark with it) would be missing for good.
  if redis.call('GET', P .. 'sweeping') ~= arg.mark and redis.call('GET', P .. 'rebuilding') ~= arg.mark then
    return answer('again')
  end
  local freed = 0
  for _, id in ipairs(redis.call('ZRANGE', P .. 'held', 0, -1)) do
    local held = live(id)
    local seen = redis.call('HGET', P .. 'slot:' .. id, 'seen')
    if held and not held.called and seen ~= arg.mark and held.at < arg.started - rules.grace then
      let_go(id)
      freed = freed + 1
    end
  end
  redis.call('SET', P .. 'epoch', arg.mark)
  redis.call('DEL', P .. 'rebuilding')
  return answer('done', freed, '', call_out())
end

function ops.count()
  local all = answer('count', redis.call('ZCOUNT', P .. 'held', '(' .. now, '+inf'), redis.call('ZCARD', P .. 'called'))
  all[4] = tostring(redis.call('ZCARD', P .. 'waiting'))
  all[5] = tostring(redis.call('EXISTS', P .. 'epoch'))
  local providers, names = {}, {}
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'held', '(' .. now, '+inf')) do
    local kept = redis.call('HGET', P .. 'slot:' .. id, 's')
    local provider = kept and cjson.decode(kept).provider
    if provider then
      if not providers[provider] then names[#names + 1] = provider end
      providers[provider] = (providers[provider] or 0) + 1
    end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    all[#all + 1] = name
    all[#all + 1] = tostring(providers[name])
  end
  return all
end

-- Nothing is granted by counts that are not whole; what is given back is remembered all the same.
local whole = { ask = true, keep = true, tick = true, withdraw = true }
if whole[op] and redis.call('EXISTS', P .. 'epoch') == 0 then return { 'lost' } end
if op ~= 'count' then pass_time() end
return ops[op]()
