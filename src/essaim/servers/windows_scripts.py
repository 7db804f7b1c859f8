"""What is run on a Windows server: fixed texts, to which everything else comes as parameters.

Each prints one line of JSON, also of an error.  PowerShell takes no notice of capitals in the
names of variables, so a parameter and what is made of it have different names.
"""

from __future__ import annotations

_ANSWER = """
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue'
try { $answer = & $work }
catch {
    $answer = @{
        error = $_.Exception.Message
        id = $_.FullyQualifiedErrorId
        category = [string]$_.CategoryInfo.Category
    }
}
ConvertTo-Json -Compress -Depth 4 -InputObject $answer
"""

_RECORDS = """
function Get-Value($record) {
    switch ($record.RecordType) {
        'A' { $record.RecordData.IPv4Address.IPAddressToString }
        'AAAA' { $record.RecordData.IPv6Address.IPAddressToString }
        'CNAME' { $record.RecordData.HostNameAlias.TrimEnd('.').ToLowerInvariant() }
        'PTR' { $record.RecordData.PtrDomainName.TrimEnd('.').ToLowerInvariant() }
        default { [string]$record.RecordType }
    }
}
function Get-Held($wanted) {
    $node = @{ ZoneName = $wanted.zone; Name = $wanted.name; ErrorAction = 'SilentlyContinue' }
    Get-DnsServerResourceRecord @node | Where-Object { $_.HostName -eq $wanted.name }
}
function Test-Same($record, $wanted) {
    ($record.RecordType -eq $wanted.kind) -and ((Get-Value $record) -eq $wanted.value)
}
function Get-Rival($wanted) {
    Get-Held $wanted | Where-Object {
        ($_.RecordType -in 'A', 'AAAA', 'CNAME', 'PTR') -and -not (Test-Same $_ $wanted)
    }
}
function Add-Record($wanted, $seconds) {
    $common = @{
        ZoneName = $wanted.zone
        Name = $wanted.name
        TimeToLive = [TimeSpan]::FromSeconds($seconds)
    }
    switch ($wanted.kind) {
        'A' { Add-DnsServerResourceRecordA @common -IPv4Address $wanted.value }
        'AAAA' { Add-DnsServerResourceRecordAAAA @common -IPv6Address $wanted.value }
        'CNAME' { Add-DnsServerResourceRecordCName @common -HostNameAlias ($wanted.value + '.') }
        'PTR' { Add-DnsServerResourceRecordPtr @common -PtrDomainName ($wanted.value + '.') }
    }
}
function Remove-Record($wanted) {
    Get-Held $wanted | Where-Object { Test-Same $_ $wanted } |
        Remove-DnsServerResourceRecord -ZoneName $wanted.zone -Force
}
"""

#: Adds records, all or none; `taken` says which name leads elsewhere.
NAME = (
    "param([string]$Records, [int]$Ttl)\n"
    + _RECORDS
    + """
$work = {
    $made = New-Object System.Collections.ArrayList
    $all = ConvertFrom-Json -InputObject $Records
    try {
        foreach ($wanted in $all) {
            $held = @(Get-Held $wanted)
            $same = @($held | Where-Object { Test-Same $_ $wanted })
            $rivals = @(Get-Rival $wanted)
            if (($rivals.Count -eq 0) -and ($same.Count -gt 0)) { continue }
            if ($held.Count -eq 0) {
                Add-Record $wanted $Ttl
                [void]$made.Add($wanted)
                # There is no transaction: whoever came at the same moment is seen now.
                $rivals = @(Get-Rival $wanted)
                if ($rivals.Count -eq 0) { continue }
            }
            foreach ($other in $made) { Remove-Record $other }
            if ($rivals.Count -eq 0) { $rivals = $held }
            return @{ taken = @{
                name = $wanted.name
                zone = $wanted.zone
                wanted = $wanted.value
                value = [string](Get-Value $rivals[0])
                kind = [string]$rivals[0].RecordType
            } }
        }
    }
    catch {
        foreach ($other in $made) { Remove-Record $other }
        throw
    }
    @{ made = $made.Count }
}
"""
    + _ANSWER
)

#: Removes records if the name of the first belongs to nobody else.
UNNAME = (
    "param([string]$First, [string]$Rest)\n"
    + _RECORDS
    + """
$work = {
    $own = ConvertFrom-Json -InputObject $First
    $others = ConvertFrom-Json -InputObject $Rest
    if (@(Get-Rival $own).Count -gt 0) { return @{ left = $true } }
    Remove-Record $own
    foreach ($other in $others) { Remove-Record $other }
    @{ left = $false }
}
"""
    + _ANSWER
)

#: Lists addresses and aliases of zones.
NAMED = (
    "param([string]$Zones)\n"
    + _RECORDS
    + """
$work = {
    $found = New-Object System.Collections.ArrayList
    $all = ConvertFrom-Json -InputObject $Zones
    foreach ($zone in $all) {
        foreach ($record in (Get-DnsServerResourceRecord -ZoneName $zone)) {
            if ($record.RecordType -in 'A', 'AAAA', 'CNAME') {
                [void]$found.Add(@{ zone = $zone; name = $record.HostName
                    kind = [string]$record.RecordType; value = [string](Get-Value $record) })
            }
        }
    }
    @{ records = $found }
}
"""
    + _ANSWER
)

_RESERVATIONS = """
function Get-Shown($reservation) {
    @{ address = $reservation.IPAddress.IPAddressToString
       card = ([string]$reservation.ClientId).ToLowerInvariant()
       name = [string]$reservation.Name }
}
"""

#: Adds a reservation; `held` lists what has the address or the card already.
ADMIT = (
    "param([string]$Address, [string]$Card, [string]$Name)\n"
    + _RESERVATIONS
    + """
$work = {
    $bits = ([ipaddress]$Address).Address
    $scope = Get-DhcpServerv4Scope | Where-Object {
        ($_.ScopeId.Address -band $_.SubnetMask.Address) -eq ($bits -band $_.SubnetMask.Address)
    } | Select-Object -First 1
    if ($null -eq $scope) { return @{ scope = $false; held = @() } }
    $all = @(Get-DhcpServerv4Reservation -ScopeId $scope.ScopeId)
    $held = @($all | Where-Object {
        ($_.IPAddress.IPAddressToString -eq $Address) -or ($_.ClientId -eq $Card)
    })
    if ($held.Count -eq 0) {
        $new = @{ ScopeId = $scope.ScopeId; IPAddress = $Address; ClientId = $Card; Name = $Name }
        Add-DhcpServerv4Reservation @new
    }
    @{ scope = $true; held = @($held | ForEach-Object { Get-Shown $_ }) }
}
"""
    + _ANSWER
)

#: Removes the reservation of an address if it is for that card.
DISMISS = (
    """param([string]$Address, [string]$Card)
$work = {
    $held = Get-DhcpServerv4Reservation -IPAddress $Address -ErrorAction SilentlyContinue
    if (($null -ne $held) -and ($held.ClientId -eq $Card)) {
        Remove-DhcpServerv4Reservation -IPAddress $Address
    }
    @{ done = $true }
}
"""
    + _ANSWER
)

#: Lists every reservation.
ADMITTED = (
    _RESERVATIONS.lstrip()
    + """
$work = {
    $found = New-Object System.Collections.ArrayList
    foreach ($scope in (Get-DhcpServerv4Scope)) {
        foreach ($reservation in (Get-DhcpServerv4Reservation -ScopeId $scope.ScopeId)) {
            [void]$found.Add((Get-Shown $reservation))
        }
    }
    @{ reservations = $found }
}
"""
    + _ANSWER
)
